// Package doctor checks everything that a run needs, before it is needed or after it failed: files and certificates,
// etcd and its members, the spool, every destination, what the API server grants. It changes nothing but for one small
// object in each destination, which it removes again.
//
// Checks run side by side and each has a time of its own, so that neither a failure nor a hung disk hides another.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/agent/catalog"
	"etcdsnapshot.dev/agent/destination"
	"etcdsnapshot.dev/agent/etcd"
	"etcdsnapshot.dev/agent/metrics"
)

// Result is what came of one check.
type Result string

// Results.
const (
	OK   Result = "ok"
	Warn Result = "warn" // a run works, but not for long, or not well
	Fail Result = "fail" // a run does not work
	Skip Result = "skip" // not checked, for the reason that the message gives
)

// Finding is one line of a diagnosis.
type Finding struct {
	// Check names what was checked, and Subject which one of several.
	Check   string `json:"check"`
	Subject string `json:"subject,omitempty"`
	Result  Result `json:"result"`
	// Message says what was found.
	Message string `json:"message"`
	// Remedy says what to do about a warning or a failure.
	Remedy string `json:"remedy,omitempty"`
	// Err is behind a failure; nil otherwise.
	Err error `json:"-"`
}

func (f Finding) String() string {
	text := f.Check
	if f.Subject != "" {
		text += " " + f.Subject
	}
	text += ": " + f.Message
	if f.Remedy != "" {
		text += " → " + f.Remedy
	}
	return text
}

// ErrConfig is in the Err of failures that stay until somebody changes the configuration.
var ErrConfig = errors.New("bad configuration")

// Area is a part of what a run needs.
type Area int

// Areas, in the order of the diagnosis.
const (
	Policy        Area = iota // the policy, encryption, the environment
	Files                     // what the policy names, and certificates
	Etcd                      // endpoints, alarms, versions
	Spool                     // room on this node
	Destinations              // each destination's rights and owner
	Kubernetes                // the API server, the CRDs, RBAC
	Notifications             // their Secrets and servers
	Metrics                   // who takes them
)

// Request says what to check.
type Request struct {
	// Policy is nil where it could not be read, for the reason PolicyErr. PolicySource says where it came from.
	Policy       *v1.EtcdSnapshotPolicy
	PolicySource string
	PolicyErr    error
	// Owner is who we are in the destinations.
	Owner destination.Owner
	// Kubernetes is nil where there is no API server, for the reason KubernetesErr, or nil where none is used.
	Kubernetes    *catalog.Client
	KubernetesErr error
	// Namespace and Name of the policy in the API server.
	Namespace, Name string
	Node            string

	SpoolDir string
	// SpoolLimit is how much the spool may hold before the kubelet ends the pod, in bytes; 0 is not known.
	SpoolLimit int64
	// Identities are files with keys that are to open the snapshots; none is fine.
	Identities []string

	// Version of this program, which servers are told.
	Version string
	// Areas to check; none means all.
	Areas []Area
	// Timeout of one check; 30 s if 0. DialTimeout is that of an endpoint.
	Timeout, DialTimeout time.Duration
	// Log takes what the stores say on the way.
	Log *slog.Logger
	// Now is the clock; nil is the real one.
	Now func() time.Time
}

const (
	defaultTimeout = 30 * time.Second
	// cleanupGrace is how much longer a check may take to tidy up.
	cleanupGrace = 25 * time.Second
)

// run is a diagnosis under way.
type run struct {
	Request
	// survey asks the members once, for all checks that want to know.
	survey func() surveyed
}

// check is a part of a diagnosis that runs on its own.
type check struct {
	area          Area
	name, subject string
	do            func(ctx context.Context) []Finding
	// needsPolicy says that there is nothing to check without one.
	needsPolicy bool
}

// Run checks. The findings come in a fixed order.
func Run(ctx context.Context, q Request) []Finding {
	if q.Timeout == 0 {
		q.Timeout = defaultTimeout
	}
	if q.Now == nil {
		q.Now = time.Now
	}
	if q.Log == nil {
		q.Log = slog.New(slog.DiscardHandler)
	}
	r := &run{Request: q}
	r.survey = sync.OnceValue(func() surveyed { return r.askMembers(ctx) })
	var checks []check
	for _, c := range r.checks() {
		if len(q.Areas) == 0 || slices.Contains(q.Areas, c.area) {
			checks = append(checks, c)
		}
	}
	found := make([][]Finding, len(checks))
	var wg sync.WaitGroup
	for i, c := range checks {
		wg.Go(func() { found[i] = r.bounded(ctx, c) })
	}
	wg.Wait()
	return slices.Concat(found...)
}

func (r *run) checks() []check {
	checks := []check{
		{Policy, "policy", "", r.checkPolicy, false},
		{Policy, "encryption", "", r.checkEncryption, true},
		{Policy, "signing", "", r.checkSigning, true},
		{Policy, "environment", "", r.checkEnvironment, false},
		{Files, "file", "", r.checkFiles, true},
		{Files, "extras", "", r.checkExtras, true},
		{Files, "certificate", "", r.checkCertificates, true},
		{Etcd, "etcd", "", r.checkEtcd, true},
		{Spool, "spool", "", r.checkSpool, true},
	}
	if r.Request.Policy != nil {
		for _, spec := range r.Request.Policy.Spec.Destinations {
			do := func(ctx context.Context) []Finding { return r.checkDestination(ctx, spec) }
			checks = append(checks, check{Destinations, "destination", spec.Name, do, true})
		}
	} else {
		checks = append(checks, check{Destinations, "destination", "", nil, true})
	}
	checks = append(checks, check{Kubernetes, "api-server", "", r.checkKubernetes, false})
	if r.Request.Policy != nil {
		for _, spec := range r.Request.Policy.Spec.Notifications {
			do := func(ctx context.Context) []Finding { return r.checkNotification(ctx, spec) }
			checks = append(checks, check{Notifications, "notification", spec.Name, do, true})
		}
		for _, receiver := range metrics.Receivers(r.Request.Policy.Spec.Metrics, r.Version) {
			do := func(ctx context.Context) []Finding { return checkReceiver(ctx, receiver) }
			checks = append(checks, check{Metrics, "metrics", receiver.Field, do, true})
		}
	}
	return checks
}

// bounded runs one check, and does not wait for one that hangs in the kernel: its goroutine ends with the process.
func (r *run) bounded(ctx context.Context, c check) []Finding {
	if c.needsPolicy && r.Request.Policy == nil {
		return []Finding{{Check: c.name, Result: Skip, Message: "there is no policy to follow"}}
	}
	ctx, cancel := context.WithTimeout(ctx, r.Timeout)
	defer cancel()
	done := make(chan []Finding, 1)
	go func() { done <- c.do(ctx) }()
	select {
	case found := <-done:
		return found
	case <-time.After(r.Timeout + cleanupGrace):
		err := fmt.Errorf("no answer within %s", r.Timeout)
		return []Finding{failed(c.name, c.subject, err, "Look for a hung disk or network file system on this node (dmesg, mount).")}
	}
}

func ok(check, subject, format string, args ...any) Finding {
	return Finding{Check: check, Subject: subject, Result: OK, Message: fmt.Sprintf(format, args...)}
}

func warned(check, subject, remedy, format string, args ...any) Finding {
	return Finding{Check: check, Subject: subject, Result: Warn, Message: fmt.Sprintf(format, args...), Remedy: remedy}
}

func failed(check, subject string, err error, remedy string) Finding {
	return Finding{Check: check, Subject: subject, Result: Fail, Message: err.Error(), Remedy: remedy, Err: err}
}

func skipped(check, subject, format string, args ...any) Finding {
	return Finding{Check: check, Subject: subject, Result: Skip, Message: fmt.Sprintf(format, args...)}
}

func configErrorf(format string, args ...any) error {
	return &configError{fmt.Errorf(format, args...)}
}

// configError is ErrConfig for errors.Is, without its words.
type configError struct{ err error }

func (e *configError) Error() string   { return e.err.Error() }
func (e *configError) Unwrap() []error { return []error{ErrConfig, e.err} }

// etcdConfig is how the policy's etcd is reached.
func (r *run) etcdConfig() etcd.Config {
	e := r.Request.Policy.Spec.Etcd
	return etcd.Config{Endpoints: e.Endpoints, CAFile: e.CAFile, CertFile: e.CertFile, KeyFile: e.KeyFile, ServerName: e.ServerName, DialTimeout: r.DialTimeout, Logger: r.Log}
}
