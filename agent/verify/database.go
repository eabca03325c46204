package verify

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"syscall"

	"filippo.io/age"

	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/agent/archive"
	"etcdsnapshot.dev/agent/store"
)

// Source is a stored snapshot to be read.
type Source struct {
	// Name of it for people: a URI, a path.
	Name string
	// Reader of the object as it is stored. It must tell a cut with an error (see archive.NewDecoder).
	Reader io.Reader
	// Manifest that it must match; nil where there is none.
	Manifest *v1.Manifest
}

// Options of Database.
type Options struct {
	// Identities that may open it.
	Identities []age.Identity
	// MaxBytes that the database may have; 0 is no limit but the manifest's and the disk's.
	MaxBytes int64
	// SkipHashCheck also takes a database without etcd's checksum at its end, or with a wrong one: a copy of a member's
	// file snap/db. All other checks are made.
	SkipHashCheck bool
	// AllowNoChecksum also takes a database without etcd's checksum at its end, but not one with a wrong one.
	AllowNoChecksum bool
	// Progress, if not nil, is told how many bytes of the stored object were read.
	Progress func(read int64)
	// SpaceHint says what to do where there is too little room; empty means "choose another folder with --scratch-dir".
	SpaceHint string
}

// ErrNoChecksum says that a database does not end with etcd's checksum of it. Such an error is archive.ErrCorrupt, too.
var ErrNoChecksum = errors.New("no checksum")

// Facts of a database that was proven.
type Facts struct {
	// StoredSize and StoredSHA256 (in hexadecimal) of the object as it was read.
	StoredSize   int64
	StoredSHA256 string
	// Encrypted and Compression (v1.CompressionZstd, ...) as they were found.
	Encrypted   bool
	Compression string
	// Size and SHA256 (in hexadecimal) of the file that was written, etcd's checksum at its end included.
	Size   int64
	SHA256 string
	// HasTrailer says that the file ends with etcd's checksum. TrailerMatches is false only with Options.SkipHashCheck.
	HasTrailer, TrailerMatches bool
	Status
}

// Database decodes a stored snapshot into the new file dst (mode 0600) and proves it: size and SHA-256 of the object and of
// the database against the manifest, the checks of decryption and decompression, etcd's own checksum at the end, and all
// that Inspect checks. The layers of the object are told by their first bytes.
//
// On an error there is no file dst. Every damage is archive.ErrCorrupt, and the text says what was found. Others are:
// archive.ErrNoIdentity and ErrWrongIdentity (the latter only of an object that matches its manifest, where there is one),
// *SpaceError, fs.ErrExist, the cause of ctx, and what reading the source said.
func Database(ctx context.Context, src Source, dst string, o Options) (facts Facts, err error) {
	if m := src.Manifest; m != nil {
		if o.MaxBytes > 0 && m.Database.Size > o.MaxBytes {
			return Facts{}, fmt.Errorf("%s: its database has %d bytes, and %d are the limit", src.Name, m.Database.Size, o.MaxBytes)
		}
		if err := CheckSpace(filepath.Dir(dst), m.Database.Size, o.SpaceHint); err != nil {
			return Facts{}, err
		}
	}
	f, err := os.OpenFile(dst, os.O_RDWR|os.O_CREATE|os.O_EXCL|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return Facts{}, fmt.Errorf("create the file for the database: %w", err)
	}
	defer func() {
		err = errors.Join(err, f.Close())
		if err != nil {
			err = errors.Join(err, os.Remove(dst))
		}
	}()
	out := &landing{ctx: ctx, f: f, hash: sha256.New(), limit: o.MaxBytes, hint: o.SpaceHint}
	if src.Manifest != nil {
		out.limit = src.Manifest.Database.Size
	}
	in := &storedReader{ctx: ctx, r: src.Reader, hash: sha256.New(), progress: o.Progress}
	if facts, err = decode(src, in, out, o); err != nil {
		return Facts{}, fmt.Errorf("%s: %w", src.Name, err)
	}
	if err = checkTrailer(&facts, out, o); err != nil {
		return Facts{}, fmt.Errorf("%s: %w", src.Name, err)
	}
	if facts.Status, err = Inspect(ctx, dst); err != nil {
		return Facts{}, fmt.Errorf("%s: %w", src.Name, err)
	}
	if m := src.Manifest; m != nil && facts.Revision < m.Etcd.Revision {
		return Facts{}, fmt.Errorf("%s: %w", src.Name, corruptf("database", "its revision is %d, and etcd was at %d before the snapshot was begun", facts.Revision, m.Etcd.Revision))
	}
	return facts, nil
}

// decode moves the database from in to out and compares both ends with the manifest.
func decode(src Source, in *storedReader, out *landing, o Options) (facts Facts, err error) {
	d, err := archive.NewDecoder(in, o.Identities...)
	if err == nil {
		facts.Encrypted, facts.Compression = d.Encrypted, d.Compression
		_, err = d.WriteTo(out)
		err = errors.Join(err, d.Close())
	}
	switch {
	case in.err != nil:
		return Facts{}, storeError(in.err)
	case out.err != nil && !errors.Is(out.err, archive.ErrCorrupt):
		return Facts{}, out.err
	case errors.Is(err, archive.ErrNoIdentity):
		return Facts{}, err
	}
	if src.Manifest != nil {
		// Where decoding stopped early, the rest tells a damaged object from a whole one that was never good, and from one
		// that somebody else's identity opens.
		if serr := in.finish(src.Manifest.Object); serr != nil {
			if err != nil && errors.Is(serr, archive.ErrCorrupt) {
				serr = fmt.Errorf("%w; decoding it: %w", serr, damageOnly(err))
			}
			return Facts{}, serr
		}
	}
	if err != nil {
		return Facts{}, err
	}
	facts.StoredSize, facts.StoredSHA256 = in.n, hex.EncodeToString(in.hash.Sum(nil))
	facts.Size, facts.SHA256 = out.n, out.sum()
	if m := src.Manifest; m != nil {
		if facts.Size != m.Database.Size || facts.SHA256 != m.Database.SHA256 {
			return Facts{}, corruptf("database", "it has %d bytes with sha256 %s, and the manifest says %d bytes with sha256 %s",
				facts.Size, facts.SHA256, m.Database.Size, m.Database.SHA256)
		}
	}
	return facts, nil
}

// damageOnly keeps the text of an error that must not be taken for what it says it is: the identity that does not open a
// damaged file need not be wrong.
func damageOnly(err error) error {
	if errors.Is(err, archive.ErrCorrupt) {
		return err
	}
	return errors.New(err.Error())
}

// storeError makes damage of what the store found out about the object's length.
func storeError(err error) error {
	if errors.Is(err, store.ErrMismatch) {
		return corruptf("stored object", "%w", err)
	}
	return err
}

// trailerMod is what a database's size is a multiple of: a size that leaves sha256.Size over ends with etcd's checksum
// (as etcdutl's restore tells).
const trailerMod = 512

func checkTrailer(facts *Facts, out *landing, o Options) error {
	switch facts.Size % trailerMod {
	case sha256.Size:
		facts.HasTrailer = true
		facts.TrailerMatches = out.trailer == [sha256.Size]byte(out.tail)
		if !facts.TrailerMatches && !o.SkipHashCheck {
			return corruptf("database", "etcd's checksum at its end says sha256 %x, and what comes before has %x", out.tail, out.trailer)
		}
	case 0:
		if !o.SkipHashCheck && !o.AllowNoChecksum {
			return fmt.Errorf("database has %w of etcd's at its end: it is %w, or a copy of a member's file snap/db (which --skip-hash-check takes)", ErrNoChecksum, archive.ErrCorrupt)
		}
	default:
		return corruptf("database", "its %d bytes are no whole number of pages: it is cut short", facts.Size)
	}
	return nil
}

// Trailer compares etcd's checksum at the end of the database file at path, where there is one, with what comes before. The
// error is archive.ErrCorrupt where they differ, or where the file is cut short.
func Trailer(ctx context.Context, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("check database: %w", err)
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return fmt.Errorf("check database: %w", err)
	}
	out := &landing{ctx: ctx, hash: sha256.New()}
	if _, err := io.CopyBuffer(struct{ io.Writer }{out}, struct{ io.Reader }{f}, make([]byte, 256<<10)); err != nil {
		return fmt.Errorf("check database %s: %w", path, err)
	}
	facts := Facts{Size: fi.Size(), SHA256: out.sum()}
	return checkTrailer(&facts, out, Options{AllowNoChecksum: true})
}

// landing writes the database and hashes it twice in one: without etcd's checksum at its end, and with it.
type landing struct {
	ctx   context.Context
	f     *os.File // nil: it is only hashed
	limit int64
	hint  string
	n     int64
	err   error

	hash    hash.Hash // of all but the tail
	tail    []byte    // the last 32 bytes
	trailer [sha256.Size]byte
}

func (l *landing) Write(p []byte) (n int, err error) {
	defer func() { l.err = err }()
	if l.ctx.Err() != nil {
		return 0, context.Cause(l.ctx)
	}
	if l.limit > 0 && l.n+int64(len(p)) > l.limit {
		return 0, corruptf("database", "it has more than the %d bytes that it may have", l.limit)
	}
	if n = len(p); l.f != nil {
		n, err = l.f.Write(p)
	}
	l.n += int64(n)
	if err != nil {
		return n, spaceError(err, filepath.Dir(l.f.Name()), l.limit, l.hint)
	}
	if len(p) >= sha256.Size {
		l.hash.Write(l.tail)
		l.hash.Write(p[:len(p)-sha256.Size])
		l.tail = append(l.tail[:0], p[len(p)-sha256.Size:]...)
		return n, nil
	}
	l.tail = append(l.tail, p...)
	if over := len(l.tail) - sha256.Size; over > 0 {
		l.hash.Write(l.tail[:over])
		l.tail = append(l.tail[:0], l.tail[over:]...)
	}
	return n, nil
}

// sum ends it and gives the hash of everything.
func (l *landing) sum() string {
	l.hash.Sum(l.trailer[:0])
	l.hash.Write(l.tail)
	return hex.EncodeToString(l.hash.Sum(nil))
}

// storedReader hashes what is read.
type storedReader struct {
	ctx      context.Context
	r        io.Reader
	hash     hash.Hash
	n        int64
	progress func(int64)
	err      error // other than io.EOF
}

func (s *storedReader) Read(p []byte) (int, error) {
	if s.ctx.Err() != nil {
		s.err = context.Cause(s.ctx)
		return 0, s.err
	}
	n, err := s.r.Read(p)
	s.hash.Write(p[:n])
	s.n += int64(n)
	if s.progress != nil && n > 0 {
		s.progress(s.n)
	}
	if err != nil && err != io.EOF {
		s.err = err
	}
	return n, err
}

// finish reads what is left and compares all of it with what it should be.
func (s *storedReader) finish(want v1.ObjectFacts) error {
	rest := io.LimitReader(s, max(want.Size-s.n, 0)+1)
	if _, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, rest, make([]byte, 256<<10)); err != nil {
		return storeError(err)
	}
	if s.n > want.Size {
		return corruptf("stored object", "it has more than the %d bytes that its manifest says", want.Size)
	}
	if sum := hex.EncodeToString(s.hash.Sum(nil)); s.n != want.Size || sum != want.SHA256 {
		return corruptf("stored object", "it has %d bytes with sha256 %s, and its manifest says %d bytes with sha256 %s", s.n, sum, want.Size, want.SHA256)
	}
	return nil
}
