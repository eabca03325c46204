package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/resource"

	"etcdsnapshot.dev/agent/api"
	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/agent/catalog"
	"etcdsnapshot.dev/agent/destination"
	"etcdsnapshot.dev/agent/doctor"
	"etcdsnapshot.dev/agent/etcd"
	"etcdsnapshot.dev/agent/snapshot"
)

type doctorFlags struct {
	policyFlags
	spoolDir, spoolLimit, node, output string
	identities                         []string
	dial, timeout                      time.Duration
	strict                             bool
}

func newDoctor(e *env) *cobra.Command {
	f := &doctorFlags{}
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check everything a run needs and name what is missing",
		Long: `Checks what the verb snapshot needs: the policy, its files and certificates, etcd's members and alarms, clocks, the
spool, what may be done in each destination, the CRDs and RBAC. Each line says ok, warn, fail or skip, and what to do.
Nothing is changed but for one small object in each destination, which is removed again.

Exit codes: 0 nothing failed; 1 something failed that may pass; 2 something failed that stays until the configuration is
changed. Warnings do not count, but with --strict.`,
		Example: `  etcd-snapshot-agent doctor --policy etcd -n kube-system
  etcd-snapshot-agent doctor --policy-file etcd.yaml --identity identity.txt   # on a node, with the API server down`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd.Context(), e) },
	}
	f.register(cmd)
	f.readOnly = true
	fl := cmd.Flags()
	fl.StringVar(&f.spoolDir, "spool-dir", defaultSpoolDir(), "folder for a run's one local file, as the verb snapshot has it")
	fl.StringVar(&f.spoolLimit, "spool-limit", "", "how much the spool may hold, such as 10Gi: an emptyDir's sizeLimit")
	fl.StringVar(&f.node, "node", "", "name of this node (default: $NODE_NAME or the host's name)")
	fl.StringSliceVar(&f.identities, "identity", nil, "file with the age or SSH private key that is to open encrypted snapshots (repeatable)")
	fl.DurationVar(&f.dial, "dial-timeout", 10*time.Second, "give up a member that does not answer for this long")
	fl.DurationVar(&f.timeout, "timeout", 30*time.Second, "give up one check that takes longer")
	fl.BoolVar(&f.strict, "strict", false, "let warnings count as failures")
	outputFlag(cmd, &f.output)
	return cmd
}

// diagnosisError says which checks failed. Its causes decide about the exit code.
type diagnosisError struct {
	failed []doctor.Finding
	total  int
}

func (e *diagnosisError) Error() string {
	var texts []string
	for _, f := range e.failed {
		texts = append(texts, f.String())
	}
	return fmt.Sprintf("%d of %d checks failed:\n  %s", len(e.failed), e.total, strings.Join(texts, "\n  "))
}

func (e *diagnosisError) Unwrap() (errs []error) {
	for _, f := range e.failed {
		if f.Err != nil {
			errs = append(errs, f.Err)
		}
	}
	return errs
}

func (f *doctorFlags) run(ctx context.Context, e *env) error {
	if err := checkOutput(f.output, "table", "json"); err != nil {
		return err
	}
	q := doctor.Request{Namespace: f.namespace, Name: f.name, Node: nodeName(f.node), SpoolDir: f.spoolDir, Identities: f.identities, Timeout: f.timeout, DialTimeout: f.dial, Log: e.log, Version: version}
	if f.spoolLimit != "" {
		limit, err := resource.ParseQuantity(f.spoolLimit)
		if err != nil {
			return usageErrorf("--spool-limit: %q is no quantity such as 10Gi", f.spoolLimit)
		}
		q.SpoolLimit = limit.Value()
	}
	if err := f.examine(ctx, e, &q); err != nil {
		return err
	}
	found := doctor.Run(ctx, q)
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	if err := f.print(e, found); err != nil {
		return err
	}
	bad := &diagnosisError{total: len(found)}
	for _, one := range found {
		if one.Result == doctor.Fail || f.strict && one.Result == doctor.Warn {
			bad.failed = append(bad.failed, one)
		}
	}
	if len(bad.failed) > 0 {
		return bad
	}
	e.terminationMessage(fmt.Sprintf("%d checks, none failed", len(found)))
	return nil
}

// examine reads the policy. What goes wrong is a finding like any other; only wrong flags are an error.
func (f *doctorFlags) examine(ctx context.Context, e *env, q *doctor.Request) error {
	if f.file == "" || f.kubeconfig != "" {
		q.Kubernetes, q.KubernetesErr = catalog.Connect(f.kubeconfig)
	}
	read, cancel := context.WithTimeout(ctx, f.timeout)
	defer cancel()
	l, err := f.read(read, e)
	var usage *usageError
	if errors.As(err, &usage) && (l.policy != nil || (f.name == "") == (f.file == "")) {
		return err // the arguments, and not what they name
	}
	q.PolicySource, q.PolicyErr = "from "+f.file, err
	if f.file == "" {
		q.PolicySource = "from the API server"
	}
	if l.policy == nil && f.manifest != "" {
		// The other checks can go by the manifest. Why the run fails is known already.
		if p, err := api.LoadPolicy(f.manifest, e.stdin); err == nil {
			l.policy, l.owner = p, destination.Owner{ClusterName: p.Spec.ClusterName, ClusterUID: p.Spec.ClusterUID}
		}
	}
	if q.Kubernetes != nil {
		q.Namespace = f.inNamespace(q.Kubernetes)
	}
	if l.policy == nil {
		return nil
	}
	if l.owner.ClusterName == "" {
		// What the folder will be called is not known; what may be done can be tried out in one beside it.
		l.owner.ClusterName = "etcd-snapshot-doctor"
	}
	q.Policy, q.Owner, q.Name = l.policy, l.owner, l.policy.Name
	if l.policy.Namespace != "" {
		q.Namespace = l.policy.Namespace
	}
	return nil
}

func (f *doctorFlags) print(e *env, found []doctor.Finding) error {
	if f.output == "json" {
		worst := doctor.OK
		for _, one := range found {
			if one.Result == doctor.Fail || one.Result == doctor.Warn && worst != doctor.Fail {
				worst = one.Result
			}
		}
		return printJSON(e.stdout, map[string]any{"result": worst, "checks": found})
	}
	counts := map[doctor.Result]int{}
	t := newTable(e.stdout, "RESULT", "CHECK", "SUBJECT", "FOUND")
	for _, one := range found {
		counts[one.Result]++
		subject := one.Subject
		if subject == "" {
			subject = "-"
		}
		t.row(one.Result, one.Check, subject, strings.Join(strings.Fields(one.Message), " "))
		if one.Remedy != "" {
			t.row("", "", "", "→ "+one.Remedy)
		}
	}
	if err := t.flush(); err != nil {
		return err
	}
	warnings := "warnings"
	if counts[doctor.Warn] == 1 {
		warnings = "warning"
	}
	_, err := fmt.Fprintf(e.stdout, "\n%d failed, %d %s, %d ok, %d skipped\n", counts[doctor.Fail], counts[doctor.Warn], warnings, counts[doctor.OK], counts[doctor.Skip])
	return err
}

const (
	// diagnosisTime is how long a failed run may still look for the reason, and diagnosisDial how long for one member.
	diagnosisTime = 8 * time.Second
	diagnosisDial = 3 * time.Second
)

// diagnose has the doctor look at what a failed run failed on, and adds what is wrong to the log and to the termination
// message. It changes neither the error nor the exit code.
func (f *snapshotFlags) diagnose(ctx context.Context, e *env, l *loaded, err error) {
	areas, destinations := suspects(err)
	if ctx.Err() != nil || len(areas) == 0 {
		return
	}
	policy := l.policy.DeepCopy()
	if destinations != nil {
		policy.Spec.Destinations = slices.DeleteFunc(policy.Spec.Destinations, func(d v1.Destination) bool { return !slices.Contains(destinations, d.Name) })
	}
	ctx, cancel := context.WithTimeout(ctx, diagnosisTime)
	defer cancel()
	found := doctor.Run(ctx, doctor.Request{Policy: policy, Owner: l.owner, Node: nodeName(f.node), SpoolDir: f.spoolDir,
		Areas: areas, Timeout: diagnosisTime, DialTimeout: diagnosisDial, Log: e.log})
	clean := true
	for _, one := range found {
		if one.Result != doctor.Fail && one.Result != doctor.Warn {
			continue
		}
		clean = false
		e.log.Error("diagnosis", "check", one.Check, "subject", one.Subject, "result", one.Result, "found", one.Message, "remedy", one.Remedy)
		e.diagnosis = append(e.diagnosis, one.String())
	}
	if clean {
		e.log.Info("diagnosis: what the run failed on is in order now; it may have passed", "checks", len(found))
	}
}

// suspects gives the areas to look at after err, and the destinations that failed; nil are all.
func suspects(err error) (areas []doctor.Area, destinations []string) {
	var (
		partial     *snapshot.PartialError
		unstored    *snapshot.UnstoredError
		extras      *snapshot.ExtrasError
		foreign     *destination.ForeignError
		config      *etcd.ConfigError
		unavailable *etcd.UnavailableError
		stalled     *etcd.StallError
	)
	names := func(outcomes []snapshot.Outcome) (names []string) {
		for _, o := range outcomes {
			names = append(names, o.Name)
		}
		return names
	}
	switch {
	case errors.As(err, &foreign):
		return nil, nil // it says all there is to say
	case errors.As(err, &partial):
		return []doctor.Area{doctor.Destinations}, names(partial.Failed)
	case errors.As(err, &unstored):
		return []doctor.Area{doctor.Destinations}, names(unstored.Failed)
	case errors.As(err, &extras):
		return []doctor.Area{doctor.Files}, nil
	case errors.As(err, &config), errors.As(err, &unavailable):
		return []doctor.Area{doctor.Files, doctor.Etcd}, nil
	case errors.As(err, &stalled), errors.Is(err, etcd.ErrStreamCut):
		return []doctor.Area{doctor.Etcd}, nil
	case snapshot.IsLocal(err):
		return []doctor.Area{doctor.Spool}, nil
	}
	return nil, nil
}
