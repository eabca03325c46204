package cli

import (
	"context"
	"errors"
	"fmt"
	"os"

	"etcdsnapshot.dev/agent/api"
	"etcdsnapshot.dev/agent/archive"
	"etcdsnapshot.dev/agent/catalog"
	"etcdsnapshot.dev/agent/destination"
	"etcdsnapshot.dev/agent/doctor"
	"etcdsnapshot.dev/agent/etcd"
	"etcdsnapshot.dev/agent/inspect"
	"etcdsnapshot.dev/agent/object"
	"etcdsnapshot.dev/agent/restore"
	"etcdsnapshot.dev/agent/snapshot"
	"etcdsnapshot.dev/agent/store"
)

// Exit codes. They are a promise: the chart's podFailurePolicy and users' scripts rely on them.
const (
	exitOK          = 0
	exitFailed      = 1   // worth retrying
	exitConfig      = 2   // bad configuration or usage: do not retry
	exitPartial     = 3   // stored, but not in every required destination; or clusters are stale
	exitCorrupt     = 4   // a stored snapshot is corrupt
	exitInterrupted = 130 // by a signal
)

// ExitCode is one of the program's exit codes.
type ExitCode struct {
	Code    int
	Meaning string
}

// ExitCodes gives all of them, for documentation.
func ExitCodes() []ExitCode {
	return []ExitCode{
		{exitOK, "Done."},
		{exitFailed, "Failed, and worth retrying: the network, a store, a member of etcd, the disk."},
		{exitConfig, "Bad configuration or usage: the same will fail again until somebody changes it. Of `snapshot` with extras: stored safely, but without them, because a path of theirs is wrong."},
		{exitPartial, "Partial. `snapshot`: stored safely, but not in every required destination. `list --all-clusters`: some clusters are stale. `status` alone has the codes of Nagios' plugins: 0 OK, 1 WARNING, 2 CRITICAL, 3 UNKNOWN."},
		{exitCorrupt, "A stored snapshot is corrupt."},
		{exitInterrupted, "Interrupted by a signal; nothing half-written is left visible."},
	}
}

func exitMeaning(code int) string {
	switch code {
	case exitConfig:
		return "bad configuration, not worth retrying"
	case exitPartial:
		return "partial"
	case exitCorrupt:
		return "corrupt"
	case exitInterrupted:
		return "interrupted"
	}
	return "failed"
}

// Interrupted is the cause of a context that a signal ended.
type Interrupted struct{ Signal os.Signal }

func (i Interrupted) Error() string { return "interrupted by signal: " + i.Signal.String() }

// usageError is a mistake in the arguments.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

func usageErrorf(format string, args ...any) error { return &usageError{fmt.Errorf(format, args...)} }

// exitCode is the code that a verb which ended with err exits with.
func exitCode(ctx context.Context, err error) int {
	var (
		interrupted Interrupted
		partial     *snapshot.PartialError
		extras      *snapshot.ExtrasError
		unstored    *snapshot.UnstoredError
		judged      interface{ exitCode() int } // an error that knows its code
	)
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &interrupted), errors.As(context.Cause(ctx), &interrupted):
		return exitInterrupted
	case errors.As(err, &partial):
		return exitPartial
	case errors.As(err, &extras):
		return exitConfig
	case errors.As(err, &judged):
		return judged.exitCode()
	case errors.As(err, &unstored):
		// Trying again helps if it might help in one destination.
		for _, o := range unstored.Failed {
			if !isConfig(o.Err) {
				return exitFailed
			}
		}
		return exitConfig
	case isConfig(err):
		return exitConfig
	case errors.Is(err, archive.ErrCorrupt):
		return exitCorrupt
	}
	return exitFailed
}

// isConfig reports whether err will be the same until somebody changes the configuration.
func isConfig(err error) bool {
	var (
		usage   *usageError
		invalid *api.InvalidError
		foreign *destination.ForeignError
		member  *etcd.ConfigError
		server  *catalog.ConfigError
		value   *archive.FieldError
		query   *inspect.UsageError
		sealed  *object.EncryptedError
	)
	return errors.As(err, &usage) || errors.As(err, &invalid) || errors.As(err, &foreign) ||
		errors.As(err, &member) || errors.As(err, &server) || errors.As(err, &value) || errors.As(err, &query) ||
		errors.As(err, &sealed) || errors.Is(err, store.ErrConfig) || errors.Is(err, restore.ErrRefused) ||
		errors.Is(err, doctor.ErrConfig) ||
		errors.Is(err, archive.ErrNoIdentity) || errors.Is(err, archive.ErrWrongIdentity)
}
