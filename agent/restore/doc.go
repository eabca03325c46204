// Package restore rebuilds what an etcd member keeps on its disk from a snapshot, and does it so that nothing that was
// there is lost when something goes wrong in the middle.
//
// Prove comes first and touches nothing: it fetches the snapshot, decodes it into a local file and makes all checks of
// package verify. Into then rebuilds a data directory that was not there, Kubeadm replaces the one of a control plane that
// kubeadm made, in steps that a journal on the disk makes resumable. Plan prints what to run where a cluster has several
// members.
package restore

import (
	"errors"
	"fmt"
)

// ErrRefused says that a restore was refused before anything was touched, because it would do harm or cannot work. The
// text says what to do; trying again does not help.
var ErrRefused = errors.New("refused")

// refusedf is an error that is ErrRefused and reads as the text alone.
func refusedf(format string, args ...any) error {
	return &refusal{fmt.Errorf(format, args...)}
}

type refusal struct{ err error }

func (r *refusal) Error() string   { return r.err.Error() }
func (r *refusal) Unwrap() []error { return []error{ErrRefused, r.err} }
