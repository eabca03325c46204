package cli

import (
	"context"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/agent/archive"
	"etcdsnapshot.dev/agent/catalog"
	"etcdsnapshot.dev/agent/destination"
	"etcdsnapshot.dev/agent/etcd"
	"etcdsnapshot.dev/agent/schedule"
	"etcdsnapshot.dev/agent/snapshot"
)

type snapshotFlags struct {
	policyFlags
	schedule, scheduleZone, spoolDir, node, output string
	stall, dial, catalog, metrics, notify          time.Duration
	index                                          int
}

func newSnapshot(e *env) *cobra.Command {
	f := &snapshotFlags{}
	cmd := &cobra.Command{
		Use:   "snapshot",
		Short: "Take a snapshot, prove it, store it",
		Long: `Takes a snapshot of etcd from one member, compares etcd's own checksum in passing, stores it in every destination
of the policy side by side, and checks each copy. Nothing is visible before it is proven.`,
		Example: `  etcd-snapshot-agent snapshot --policy etcd -n kube-system
  etcd-snapshot-agent snapshot --policy-file etcd.yaml   # on a node, with the API server down`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd.Context(), e) },
	}
	f.register(cmd)
	fl := cmd.Flags()
	fl.StringVar(&f.schedule, "schedule", "", "the schedule that started this run, for the policy's status")
	fl.StringVar(&f.scheduleZone, "schedule-time-zone", "", "IANA name of that schedule's time zone (default: UTC)")
	fl.StringVar(&f.spoolDir, "spool-dir", defaultSpoolDir(), "folder for the run's one local file; about as large as a stored snapshot, and not on etcd's disk")
	fl.StringVar(&f.node, "node", "", "name of this node (default: $NODE_NAME or the host's name)")
	fl.IntVar(&f.index, "index", 0, "which of several runs, one on each node, this is: all but 0 store on their node alone, so that a bucket gets one copy")
	fl.DurationVar(&f.stall, "stall-timeout", time.Minute, "give up a stream or an upload that makes no progress for this long")
	fl.DurationVar(&f.dial, "dial-timeout", 10*time.Second, "give up a member that does not answer for this long")
	fl.DurationVar(&f.catalog, "catalog-timeout", catalog.DefaultBudget, "how long to try to write rows and status to the API server, once the snapshot is safe")
	metricsTimeFlag(fl, &f.metrics)
	notifyTimeFlag(fl, &f.notify)
	outputFlag(cmd, &f.output)
	return cmd
}

func defaultSpoolDir() string { return os.TempDir() + "/etcd-snapshot-spool" }

func (f *snapshotFlags) run(ctx context.Context, e *env) (err error) {
	if err := checkOutput(f.output, "table", "json"); err != nil {
		return err
	}
	stepBack()
	l, err := f.load(ctx, e)
	if err != nil {
		return err
	}
	told := l.tell(ctx, e, v1.RunSnapshot, f.notify, f.index > 0)
	defer func() { told.end(ctx, err) }()
	if f.index > 0 {
		if l.policy.Spec.Destinations = slices.DeleteFunc(l.policy.Spec.Destinations, func(d v1.Destination) bool { return d.HostPath == nil }); len(l.policy.Spec.Destinations) == 0 {
			return usageErrorf("--index: only the run 0 stores in the policy's destinations, of which none is a folder on a node (hostPath)")
		}
	}
	handover := l.handover(ctx, e, f.metrics)
	spec := l.policy.Spec
	recipients, extrasRecipients, err := archive.PolicyRecipients(&spec)
	if err != nil {
		return err
	}
	signer, err := archive.PolicySigner(l.policy)
	if err != nil {
		return err
	}
	cluster, err := etcd.New(etcd.Config{
		Endpoints: spec.Etcd.Endpoints, CAFile: spec.Etcd.CAFile, CertFile: spec.Etcd.CertFile, KeyFile: spec.Etcd.KeyFile, ServerName: spec.Etcd.ServerName,
		DialTimeout: f.dial, StallTimeout: f.stall, Logger: e.log,
	})
	if err != nil {
		f.diagnose(ctx, e, l, err)
		return err
	}
	defer cluster.Close()
	begin := time.Now()
	opened, unusable, done := l.open(ctx, destination.Options{Create: true, StallTimeout: f.stall, Signer: signer, Log: e.log})
	defer done()
	node := nodeName(f.node)
	debug.FreeOSMemory() // what reading the policy took is not to be added to what the stream takes
	res, err := snapshot.Run(ctx, snapshot.Request{
		Policy: l.policy, Owner: l.owner, Etcd: cluster, Recipients: recipients, ExtrasRecipients: extrasRecipients, Destinations: opened, Unusable: unusable,
		SpoolDir: f.spoolDir, Verified: l.verified(ctx, e), Node: node, AgentVersion: Version().Version, KubernetesVersion: l.kubernetesVersion,
		Log: e.log, Progress: e.progress(),
	})
	e.status.clear()
	told.took(res)
	report := runReport(l, opened, node, res, &catalog.Run{
		Schedule: f.schedule, Interval: f.interval(e, begin), Begin: begin, End: time.Now(), Certificates: certificates(e, spec.Etcd), Err: err,
	})
	report.Budget = f.catalog
	own := report
	if f.index > 0 && err == nil {
		report.Run = nil // whether the policy is fulfilled is the run 0's to say
	}
	l.record(ctx, e, report)
	handover.end(ctx, own)
	if err != nil {
		f.diagnose(ctx, e, l, err)
	}
	if res != nil {
		if perr := f.print(e, res); perr != nil && err == nil {
			err = perr
		}
		if err == nil {
			e.terminationMessage(lastWord(res))
		}
	}
	return err
}

// interval is the longest time between two runs; 0 where it is not known.
func (f *snapshotFlags) interval(e *env, now time.Time) time.Duration {
	if f.schedule == "" {
		return 0
	}
	s, err := schedule.Parse(f.schedule, f.scheduleZone)
	if err != nil {
		e.log.Warn("how often runs are due cannot be told", "error", err)
		return 0
	}
	return s.Interval(now)
}

// certificates tells when those expire that etcd is reached with. One that cannot be read failed the run already.
func certificates(e *env, spec v1.EtcdSpec) (all []v1.CertificateStatus) {
	for _, c := range []struct {
		file   string
		bundle bool
	}{{spec.CAFile, true}, {spec.CertFile, false}} {
		if c.file == "" {
			continue
		}
		expiry, err := etcd.Expiry(c.file, c.bundle)
		if err != nil {
			e.log.Debug("certificate cannot be read", "error", err)
			continue
		}
		all = append(all, v1.CertificateStatus{File: c.file, NotAfter: metav1.NewTime(expiry.UTC())})
	}
	return all
}

// progress shows how far the run is, where stderr is a terminal.
func (e *env) progress() func(snapshot.Progress) {
	if !e.status.terminal {
		return nil
	}
	meters := map[string]*meter{"stream": newMeter("streaming from etcd"), "store": newMeter("storing")}
	return func(p snapshot.Progress) { meters[p.Phase].show(e.status, p.Done, p.Total) }
}

func nodeName(flag string) string {
	if flag != "" {
		return flag
	}
	if name := os.Getenv("NODE_NAME"); name != "" {
		return name
	}
	name, _ := os.Hostname()
	return name
}

// lastWord sums up a run that went well.
func lastWord(res *snapshot.Result) string {
	m := res.Manifest
	var b strings.Builder
	fmt.Fprintf(&b, "%s: revision %d, database %s, stored %s", m.Name, m.Etcd.Revision, humanBytes(m.Database.Size), humanBytes(m.Object.Size))
	for _, o := range res.Destinations {
		if o.Err != nil {
			fmt.Fprintf(&b, "\n%s: failed (not required): %v", o.Name, o.Err)
		} else {
			fmt.Fprintf(&b, "\n%s: %s", o.Name, o.URI)
		}
	}
	return b.String()
}

func (f *snapshotFlags) print(e *env, res *snapshot.Result) error {
	if f.output == "json" {
		return printJSON(e.stdout, resultJSON(res))
	}
	m := res.Manifest
	t := newTable(e.stdout, "SNAPSHOT", "REVISION", "DATABASE", "STORED", "MEMBER", "TOOK")
	t.row(m.Name, m.Etcd.Revision, humanBytes(m.Database.Size), humanBytes(m.Object.Size), res.Endpoint, res.Took.Round(10*time.Millisecond))
	if err := t.flush(); err != nil {
		return err
	}
	fmt.Fprintln(e.stdout)
	t = newTable(e.stdout, "DESTINATION", "RESULT", "WHERE")
	for _, o := range res.Destinations {
		switch {
		case o.Err == nil:
			t.row(o.Name, "stored", o.URI)
		case o.Required:
			t.row(o.Name, "failed", oneLine(o.Err))
		default:
			t.row(o.Name, "failed (not required)", oneLine(o.Err))
		}
	}
	if err := t.flush(); err != nil {
		return err
	}
	if m.Extras != nil {
		fmt.Fprintf(e.stdout, "\nExtras: %d files, %s, as %s\n", len(m.Extras.Files), humanBytes(m.Extras.Object.Size), m.Extras.Object.Key)
	}
	return nil
}

type outcomeJSON struct {
	snapshot.Outcome
	Result string `json:"result"`
	Error  string `json:"error,omitempty"`
}

func resultJSON(res *snapshot.Result) any {
	out := struct {
		*snapshot.Result
		Destinations  []outcomeJSON `json:"destinations"`
		Seconds       float64       `json:"seconds"`
		StreamSeconds float64       `json:"streamSeconds"`
	}{Result: res, Destinations: []outcomeJSON{}, Seconds: res.Took.Seconds(), StreamSeconds: res.StreamTook.Seconds()}
	for _, o := range res.Destinations {
		j := outcomeJSON{Outcome: o, Result: "stored"}
		if o.Err != nil {
			j.Result, j.Error = "failed", o.Err.Error()
		}
		out.Destinations = append(out.Destinations, j)
	}
	return out
}
