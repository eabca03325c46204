package restore

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Distributions that Guide, or Kubeadm, knows.
func Distributions() []string {
	return []string{"kubeadm", "k3s", "rke2", "k0s", "kops", "openshift", "talos", "kubespray"}
}

// DatabaseFileName is what the database of a snapshot is called in the current folder.
func DatabaseFileName(snapshot string) string {
	if snapshot == "stdin" {
		return "snapshot-database.db"
	}
	return strings.TrimSuffix(filepath.Base(snapshot), ".db") + "-database.db"
}

// Guide says how the distribution brings back the database in db. p is what is known of it, nil before it was proven.
func Guide(distribution, db string, p *Proven) ([]string, error) {
	q := shellQuote(db)
	switch distribution {
	case "k3s":
		return rancher("k3s", "k3s", "/var/lib/rancher/k3s", q), nil
	case "rke2":
		return rancher("rke2", "rke2-server", "/var/lib/rancher/rke2", q), nil
	case "k0s":
		return k0s(q), nil
	case "kops":
		return kops(q, p), nil
	case "openshift":
		return openshift(q), nil
	case "talos":
		skip := ""
		if p != nil && !p.HasTrailer {
			skip = " --recover-skip-hash-check"
		}
		return []string{
			"Copy " + q + " to where talosctl runs. Restore the machine configuration and secrets of the cluster first (talosctl gen config --with-secrets); without its secrets the snapshot's service account tokens are worthless.",
			"On every control plane node make etcd empty again, so that none answers with the old state:\ntalosctl -n NODE reset --graceful=false --reboot --system-labels-to-wipe=EPHEMERAL\nWait until `talosctl -n NODE service etcd` says Preparing on each.",
			"On one of them:\ntalosctl -n NODE bootstrap --recover-from=" + q + skip + "\nThe others join it by themselves.",
		}, nil
	case "kubespray":
		return kubespray(q, p), nil
	}
	return nil, refusedf("there are no instructions for the distribution %q: %s are known", distribution, strings.Join(Distributions(), ", "))
}

// rancher is k3s and RKE2, which restore by themselves (docs.k3s.io/cli/etcd-snapshot, docs.rke2.io/backup_restore).
func rancher(command, unit, dir, db string) []string {
	return []string{
		"On every server node:\nsystemctl stop " + unit,
		fmt.Sprintf("On the first server node:\n%s server --cluster-reset --cluster-reset-restore-path=%s\nOn a machine that is not the old one add --token with what was in %s/server/token of the old cluster: it opens the cluster's CA keys in the snapshot. It ends by itself, and keeps the old data as %s/server/db/etcd-old-<time>.", command, db, dir, dir),
		"On the first server node:\nsystemctl start " + unit + "\nand wait until kubectl get nodes answers.",
		fmt.Sprintf("On each of the other server nodes, so that they join it anew:\nmv %[1]s/server/db %[1]s/server/db.before-restore\nsystemctl start %[2]s", dir, unit),
	}
}

func k0s(db string) []string {
	return []string{
		"On every controller:\nk0s stop",
		"On the first controller keep the old data:\nmv /var/lib/k0s/etcd /var/lib/k0s/etcd.before-restore",
		"On the first controller, where NAME is its host name and IP the address of the others' peers (spec.storage.etcd.peerAddress of k0s.yaml):\n" +
			"etcd-snapshot-agent restore --from " + db + " --data-dir /var/lib/k0s/etcd --old-data-dir /var/lib/k0s/etcd.before-restore --name NAME --initial-cluster NAME=https://IP:2380 --initial-advertise-peer-urls https://IP:2380\nk0s start",
		"Once kubectl get nodes answers, on each of the other controllers: k0s reset, then install it again with a new token (k0s token create --role=controller).",
		"On a machine that is not the old one bring back /var/lib/k0s/pki first. (k0s restore takes only archives of k0s backup, not a database.)",
	}
}

// kops goes through etcd-manager, which owns the volume: a restored data directory would be replaced by it. The layout of a
// backup is etcd-manager's (docs/backups.md there): a folder named by time and counter with the gzip-compressed snapshot
// and a JSON file.
func kops(db string, p *Proven) []string {
	version := "ETCD_VERSION (such as 3.5.21, as in spec.etcdClusters of the cluster)"
	if p != nil && p.EtcdVersion != "" {
		version = p.EtcdVersion + ".N (the patch version in spec.etcdClusters of the cluster)"
	}
	return []string{
		"Choose a name such as " + "2026-01-02T03:04:05Z-000001" + " that sorts behind the backups that are in the backup store (kops get cluster -o yaml: backups.backupStore of etcdCluster main). List them with:\netcd-manager-ctl --backup-store=STORE list-backups",
		"Put the snapshot there in etcd-manager's own form. Take _etcd_backup.meta from the newest backup that is there (its etcdVersion must be " + version + ") and:\ngzip -c " + db + " > etcd.backup.gz\naws s3 cp etcd.backup.gz STORE/NAME/etcd.backup.gz && aws s3 cp _etcd_backup.meta STORE/NAME/_etcd_backup.meta",
		"Order the restore, then restart etcd-manager on every control plane node (it stops the API server's etcd meanwhile):\netcd-manager-ctl --backup-store=STORE restore-backup NAME\ncrictl stop $(crictl ps -q --name etcd-manager)",
		"The events' etcd (main is :4001, events :4002) is a cluster of its own with a backup store of its own: events need not be restored.",
	}
}

// openshift has scripts of its own on every control plane node (cluster-etcd-operator: cluster-restore.sh).
func openshift(db string) []string {
	return []string{
		"cluster-restore.sh wants two files in one folder: snapshot_<time>.db and static_kuberesources_<time>.tar.gz. The second is not in an etcd snapshot: it is written by cluster-backup.sh. Take the newest one that is left.",
		"On the control plane node that is to be the first (oc debug node/NODE, or ssh core@NODE), where TIME is the time in the name of that tar.gz:\nmkdir -p -m 700 /home/core/assets/backup\ncp " + db + " /home/core/assets/backup/snapshot_TIME.db\ncp static_kuberesources_TIME.tar.gz /home/core/assets/backup/",
		"On each of the other control plane nodes stop the static pods and keep the old data:\nmv /etc/kubernetes/manifests/etcd-pod.yaml /etc/kubernetes/manifests/kube-apiserver-pod.yaml /home/core/\nmv /var/lib/etcd/member /home/core/etcd-member.before-restore",
		"On the first one:\nsudo -E /usr/local/bin/cluster-restore.sh /home/core/assets/backup\nIt stops the static pods, keeps the old data in /var/lib/etcd-backup, and starts a cluster of one.",
		"Restart the kubelet on all control plane nodes (systemctl restart kubelet.service), approve pending CSRs, and go on with Red Hat's page \"Restoring to a previous cluster state\" of your version: it forces a new rollout of etcd and of the other static pods.",
	}
}

// kubesprayEnv is where kubespray describes its etcd, which systemd runs (kubespray: roles/etcd/templates/etcd.env.j2).
const kubesprayEnv = "/etc/etcd.env"

func kubespray(db string, p *Proven) []string {
	env := readEnv(kubesprayEnv)
	value := func(name, placeholder string) string {
		if v := env[name]; v != "" {
			return v
		}
		return placeholder
	}
	dataDir := value("ETCD_DATA_DIR", "/var/lib/etcd")
	words := []string{"etcd-snapshot-agent", "restore", "--from", db, "--data-dir", dataDir, "--old-data-dir", dataDir + ".before-restore",
		"--name", value("ETCD_NAME", "$ETCD_NAME"), "--initial-cluster", value("ETCD_INITIAL_CLUSTER", "$ETCD_INITIAL_CLUSTER"),
		"--initial-advertise-peer-urls", value("ETCD_INITIAL_ADVERTISE_PEER_URLS", "$ETCD_INITIAL_ADVERTISE_PEER_URLS")}
	if p != nil {
		words = append(words, "--expect-sha256", p.SHA256)
	}
	restore := strings.Join(words, " ")
	if len(env) == 0 {
		restore = ". " + kubesprayEnv + "\n" + restore
	}
	return []string{
		"On every control plane node stop the API servers, so that none writes meanwhile:\nmkdir -p -m 700 /etc/kubernetes/manifests.restore && mv /etc/kubernetes/manifests/kube-*.yaml /etc/kubernetes/manifests.restore/",
		fmt.Sprintf("On every etcd node:\nsystemctl stop etcd && mv %s %s.before-restore", dataDir, dataDir),
		"Copy " + db + " to every etcd node and there (the names come from " + kubesprayEnv + " of each):\n" + restore,
		"On every etcd node, without waiting for one before the next:\nsystemctl start etcd",
		"On every control plane node:\nmv /etc/kubernetes/manifests.restore/kube-*.yaml /etc/kubernetes/manifests/ && systemctl restart kubelet",
		"Where etcd_deployment_type is kubeadm use --kubeadm instead.",
	}
}

// readEnv reads lines NAME=value; none where the file cannot be read.
func readEnv(path string) map[string]string {
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	env := map[string]string{}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if name, v, ok := strings.Cut(strings.TrimSpace(lines.Text()), "="); ok && !strings.HasPrefix(name, "#") {
			env[name] = strings.Trim(v, `"'`)
		}
	}
	return env
}
