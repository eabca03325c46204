// Package verify proves that a stored snapshot is what it should be: that the object is the one that was stored, that
// the database within is whole, and that an etcd starts from it and serves what it holds.
//
// Nothing here trusts what it reads, and memory does not grow with the database but for 8 bytes or so a key.
package verify

import (
	"fmt"

	"etcdsnapshot.dev/agent/archive"
)

// corruptf is an error that is archive.ErrCorrupt and says of what, and what was found: "database is corrupt: ...".
func corruptf(what, format string, args ...any) error {
	return fmt.Errorf("%s is %w: %w", what, archive.ErrCorrupt, fmt.Errorf(format, args...))
}
