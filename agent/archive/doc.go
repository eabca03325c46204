// Package archive gives a snapshot the form in which it is stored, and reads that form back.
//
// A stored snapshot is the database as etcd sent it, compressed (zstd, gzip or not at all) and then encrypted (age,
// or not at all). There is no container of our own around it: `age -d | zstd -d` opens every object this package
// writes, and NewDecoder opens what those tools write. Beside the object lies its manifest, a JSON file.
//
// On the way out: NewEncoder writes into a Spool, one file that is published from and removed afterwards; a Pipe
// moves the encoding off the goroutine that drains etcd. On the way back: NewDecoder recognises each layer by its
// first bytes, never by a file's name. NewName, ParseName and ParseKey know the names of snapshots and of their objects.
package archive

import "errors"

// Errors that callers tell apart with errors.Is. The text around them says what was found and what to do.
var (
	// ErrCorrupt: the bytes are not what was written: cut short, changed, or followed by something else.
	ErrCorrupt = errors.New("corrupt")
	// ErrUnknownFormat: the bytes begin like nothing that this package reads. Such an error is ErrCorrupt, too:
	// an object that should be a snapshot and does not begin like one is damaged.
	ErrUnknownFormat = errors.New("not an etcd snapshot")
	// ErrNoIdentity: the snapshot is encrypted and no identity was given.
	ErrNoIdentity = errors.New("no identity")
	// ErrWrongIdentity: none of the identities given opens the snapshot. Damage to the few bytes that hold the
	// wrapped file key looks the same.
	ErrWrongIdentity = errors.New("wrong identity")
	// ErrUntrusted: a snapshot that is not signed by a key that is trusted, where that is asked for. Such an error is
	// ErrCorrupt, too: nobody vouches that it is what was written.
	ErrUntrusted error = &failure{msg: "not signed by a trusted key", is: []error{ErrCorrupt}}
	// ErrNewerVersion: a manifest in a form that a newer agent wrote. It is not damaged.
	ErrNewerVersion = errors.New("written by a newer version")
)

// failure is an error whose text is written out in full and which is several sentinels and causes at once.
type failure struct {
	msg string
	is  []error
}

func (f *failure) Error() string   { return f.msg }
func (f *failure) Unwrap() []error { return f.is }

// Sizes of the buffers between layers. Large ones keep the number of system calls and of hand-overs small.
const (
	largeBuffer = 1 << 20
	pipeBuffer  = 512 << 10 // there are several; larger ones were hardly faster
	spoolBuffer = 64 << 10  // larger pieces take the system longer to copy
	layerBuffer = 128 << 10
)
