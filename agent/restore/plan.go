package restore

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"go.etcd.io/etcd/client/pkg/v3/types"
	"sigs.k8s.io/yaml"
)

// ClusterPlan is how a cluster of several members is restored: one snapshot, one token, one command for each.
type ClusterPlan struct {
	*Proven
	// Token and Bump that all members must have in common.
	Token          string `json:"token"`
	Bump           uint64 `json:"bump"`
	InitialCluster string `json:"initialCluster"`
	// Stop is what to run on every node before the first one is restored.
	Stop string `json:"stop,omitempty"`
	// Commands, one for each member.
	Commands []MemberCommand `json:"commands"`
}

// MemberCommand is what to run on the node of a member.
type MemberCommand struct {
	Member
	Command string `json:"command"`
}

// PlanOptions say what the commands of a plan look like.
type PlanOptions struct {
	// Args choose the snapshot and how it is opened, the same on each node.
	Args []string
	Bump uint64
	// DataDir and WALDir of etcd on each node; without DataDir the commands are for nodes that kubeadm made.
	DataDir, WALDir string
	ManifestsDir    string
}

// ReadMembers reads the members of a cluster from a file: a YAML list of {name, peerURL} or {name, peerURLs}, or the
// manifest of etcd's static pod, whose --initial-cluster counts.
func ReadMembers(path string) ([]Member, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read members: %w", err)
	}
	var kind struct {
		Kind string `json:"kind"`
	}
	if err := yaml.Unmarshal(data, &kind); err == nil && kind.Kind == "Pod" {
		s, err := readStaticPod(path)
		if err != nil {
			return nil, err
		}
		members := Config{InitialCluster: s.flag("initial-cluster")}.members()
		if len(members) == 0 {
			return nil, refusedf("%s has no --initial-cluster that can be read", path)
		}
		return members, nil
	}
	var list []struct {
		Name     string   `json:"name"`
		PeerURL  string   `json:"peerURL"`
		PeerURLs []string `json:"peerURLs"`
	}
	if err := yaml.UnmarshalStrict(data, &list); err != nil {
		return nil, refusedf("read members %s: a list of {name: cp1, peerURL: https://10.0.0.1:2380} is expected: %w", path, err)
	}
	var members []Member
	for _, e := range list {
		m := Member{Name: e.Name, PeerURLs: e.PeerURLs}
		if e.PeerURL != "" {
			m.PeerURLs = append(m.PeerURLs, e.PeerURL)
		}
		members = append(members, m)
	}
	return members, checkMembers(path, members)
}

func checkMembers(source string, members []Member) error {
	if len(members) == 0 {
		return refusedf("%s lists no member", source)
	}
	seen := map[string]string{}
	for i, m := range members {
		switch {
		case m.Name == "":
			return refusedf("%s: member %d has no name", source, i+1)
		case strings.ContainsAny(m.Name, "=,"):
			return refusedf("%s: member %q: a name has no = and no comma", source, m.Name)
		case len(m.PeerURLs) == 0:
			return refusedf("%s: member %s has no peerURL", source, m.Name)
		}
		if _, err := types.NewURLs(m.PeerURLs); err != nil {
			return refusedf("%s: member %s: %w", source, m.Name, err)
		}
		for _, key := range append([]string{"name " + m.Name}, m.PeerURLs...) {
			if other, ok := seen[key]; ok {
				return refusedf("%s: members %s and %s both have %s", source, other, m.Name, strings.TrimPrefix(key, "name "))
			}
			seen[key] = m.Name
		}
	}
	return nil
}

// Plan makes the commands that restore members, the snapshot's own if nil, from a snapshot that was proven.
func Plan(p *Proven, members []Member, o PlanOptions) (*ClusterPlan, error) {
	source := "the list of members"
	if members == nil {
		members, source = p.Members, "the snapshot"
	}
	if err := checkMembers(source, members); err != nil {
		return nil, err
	}
	plan := &ClusterPlan{Proven: p, Token: p.Token(o.Bump), Bump: o.Bump, InitialCluster: InitialCluster(members)}
	if o.DataDir == "" {
		aside := (&Kubeadm{ManifestsDir: o.ManifestsDir}).aside()
		plan.Stop = fmt.Sprintf("mkdir -p -m 700 %[2]s && for pod in kube-scheduler kube-controller-manager kube-apiserver etcd; do mv -n %[1]s/$pod.yaml %[2]s/; done", shellQuote(o.ManifestsDir), shellQuote(aside))
	}
	for _, m := range members {
		words := append([]string{"etcd-snapshot-agent", "restore"}, o.Args...)
		if o.DataDir == "" {
			words = append(words, "--kubeadm")
			if o.ManifestsDir != DefaultManifestsDir {
				words = append(words, "--manifests-dir", o.ManifestsDir)
			}
		} else {
			words = append(words, "--data-dir", o.DataDir)
			if o.WALDir != "" {
				words = append(words, "--wal-dir", o.WALDir)
			}
			words = append(words, "--name", m.Name, "--initial-advertise-peer-urls", strings.Join(m.PeerURLs, ","))
		}
		words = append(words, "--initial-cluster", plan.InitialCluster, "--initial-cluster-token", plan.Token,
			"--bump-revision", fmt.Sprint(o.Bump), "--expect-sha256", p.SHA256)
		plan.Commands = append(plan.Commands, MemberCommand{Member: m, Command: ShellLine(words)})
	}
	return plan, nil
}

// ShellLine joins words to a line for a shell.
func ShellLine(words []string) string {
	quoted := slices.Clone(words)
	for i, w := range quoted {
		quoted[i] = shellQuote(w)
	}
	return strings.Join(quoted, " ")
}
