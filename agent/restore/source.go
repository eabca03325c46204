package restore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/agent/archive"
	"etcdsnapshot.dev/agent/destination"
	"etcdsnapshot.dev/agent/store"
	"etcdsnapshot.dev/agent/store/file"
)

// Source is one copy of a snapshot. Nothing is read before Open.
type Source struct {
	// Name of the snapshot: from its manifest, or the file's name.
	Name string
	// URI of the copy, for people.
	URI string
	// Size of the stored object in bytes; 0 where it is not known.
	Size int64
	// Open gives the stored object and its manifest, which is nil where there is none.
	Open func(ctx context.Context) (io.ReadCloser, *v1.Manifest, error)
	// OpenExtras gives the extras that go with it and the manifest, each nil where there is none; nil where there cannot be
	// any.
	OpenExtras func(ctx context.Context) (io.ReadCloser, *v1.Manifest, error)
}

// FromDestination is the copy of the snapshot called name in d. A download survives broken connections; one that makes no
// progress for stall (store.DefaultStall if 0) is given up.
func FromDestination(d *destination.Destination, name string, stall time.Duration) *Source {
	open := func(ctx context.Context, which func(m *v1.Manifest) *v1.ObjectFacts) (io.ReadCloser, *v1.Manifest, error) {
		m, err := d.Manifest(ctx, name)
		if err != nil {
			return nil, nil, err
		}
		object := which(m)
		if object == nil {
			return nil, m, nil
		}
		return store.OpenResumable(ctx, d.Store, object.Key, object.Size, stall, store.RetryPolicy{}), m, nil
	}
	return &Source{Name: name, URI: d.URI(name),
		Open: func(ctx context.Context) (io.ReadCloser, *v1.Manifest, error) {
			return open(ctx, func(m *v1.Manifest) *v1.ObjectFacts { return &m.Object })
		},
		OpenExtras: func(ctx context.Context) (io.ReadCloser, *v1.Manifest, error) {
			return open(ctx, extrasOf)
		},
	}
}

// extrasOf is the object of a manifest's extras; nil where it has none.
func extrasOf(m *v1.Manifest) *v1.ObjectFacts {
	if m.Extras == nil {
		return nil
	}
	return &m.Extras.Object
}

// FromFile is a snapshot in a local file: one of ours, or a database as etcdctl, k3s and others save it. Where a manifest
// lies beside it under the name that its own name says, it must match that. Where trusted is not nil, there must be one, and
// beside it its signature by one of those keys.
func FromFile(path string, trusted archive.TrustedKeys) (*Source, error) {
	fi, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("read snapshot: %w", err)
	}
	if fi.IsDir() {
		return nil, refusedf("%s is a folder: name a file, or use --from-dir for a folder of snapshots", path)
	}
	s := &Source{Name: filepath.Base(path), URI: path, Size: fi.Size()}
	name, kind, ours := archive.ParseKey(s.Name)
	if ours && kind == archive.KindManifest {
		return nil, refusedf("%s is a manifest: name the file of the snapshot beside it", path)
	}
	if ours {
		s.Name = name
	}
	open := func(path string) (io.ReadCloser, error) {
		f, err := os.Open(path)
		if err != nil {
			return nil, fmt.Errorf("read snapshot: %w", err)
		}
		return f, nil
	}
	manifest := func() (m *v1.Manifest, err error) {
		if ours {
			if m, err = manifestBeside(path, name, trusted); err != nil {
				return nil, err
			}
		}
		if m == nil && trusted != nil {
			return nil, fmt.Errorf("%s: snapshot is %w: there is no manifest beside it, which is what is signed (its name and .json)", path, archive.ErrUntrusted)
		}
		return m, nil
	}
	s.Open = func(context.Context) (io.ReadCloser, *v1.Manifest, error) {
		if ours && kind == archive.KindExtras {
			return nil, nil, refusedf("%s holds the extras of a snapshot: name the file of the snapshot beside it, or extract these with --extras DIR", path)
		}
		m, err := manifest()
		if err != nil {
			return nil, nil, err
		}
		f, err := open(path)
		return f, m, err
	}
	s.OpenExtras = func(context.Context) (io.ReadCloser, *v1.Manifest, error) {
		m, err := manifest()
		switch {
		case err != nil:
			return nil, nil, err
		case ours && kind == archive.KindExtras:
			f, err := open(path)
			return f, m, err
		case m == nil || m.Extras == nil:
			return nil, m, nil
		}
		f, err := open(filepath.Join(filepath.Dir(path), m.Extras.Object.Key))
		return f, m, err
	}
	return s, nil
}

func manifestBeside(path, name string, trusted archive.TrustedKeys) (*v1.Manifest, error) {
	dir := filepath.Dir(path)
	beside := filepath.Join(dir, archive.ManifestKey(name))
	data, err := readBeside(beside, archive.MaxManifestSize)
	if data == nil || err != nil {
		return nil, err
	}
	if trusted != nil {
		signature, err := readBeside(filepath.Join(dir, archive.SignatureKey(name)), archive.MaxSignatureSize)
		if err == nil {
			_, err = trusted.Verify(data, signature)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", beside, err)
		}
	}
	m, err := archive.DecodeManifest(data)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", beside, err)
	}
	if m.Name != name {
		return nil, fmt.Errorf("read %s: %w: it is the manifest of %s", beside, archive.ErrCorrupt, m.Name)
	}
	return m, nil
}

// readBeside reads a small file that goes with a snapshot; nil where it is not there.
func readBeside(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read what goes with the snapshot: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return data, nil
}

// FromReader is a snapshot that is read once, such as standard input.
func FromReader(name string, r io.Reader) *Source {
	return &Source{Name: name, URI: name, Open: func(context.Context) (io.ReadCloser, *v1.Manifest, error) {
		return io.NopCloser(r), nil, nil
	}}
}

// OpenFolder opens a folder that holds one cluster's snapshots, such as /var/lib/etcd-snapshots/<clusterName>, without a
// policy.
func OpenFolder(dir string, log *slog.Logger) (*destination.Destination, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	s, err := file.New(abs, file.Options{})
	if err != nil {
		return nil, err
	}
	return &destination.Destination{Spec: v1.Destination{Name: abs}, Store: s, Log: log}, nil
}

// Selection says which snapshot is wanted: exactly one of the fields is set.
type Selection struct {
	Name   string
	Latest bool
	// At picks the newest snapshot that was taken then or before.
	At time.Time
}

// String is how the selection is written on the command line.
func (s Selection) String() string {
	switch {
	case s.Name != "":
		return s.Name
	case s.Latest:
		return "--latest"
	}
	return "--at " + s.At.Format(time.RFC3339)
}

// Choose picks a snapshot of policy (of all policies if empty) out of what the destinations hold, which is listed newest
// first.
func Choose(survey *destination.Survey, policy string, want Selection) (destination.Row, error) {
	var oldest time.Time
	for _, row := range survey.Snapshots {
		if want.Name == row.Name {
			return row, nil
		}
		if want.Name != "" || policy != "" && row.Policy != policy {
			continue
		}
		taken := row.Snapshot().Taken()
		if want.Latest || !taken.After(want.At) {
			return row, nil
		}
		oldest = taken
	}
	switch {
	case want.Name != "":
		return destination.Row{}, fmt.Errorf("snapshot %s is in none of the destinations that could be read (see etcd-snapshot-agent list)", want.Name)
	case oldest.IsZero():
		return destination.Row{}, errors.New("there is no snapshot in the destinations that could be read")
	}
	return destination.Row{}, refusedf("no snapshot was taken at or before %s: the oldest is of %s", want.At.Format(time.RFC3339), oldest.Format(time.RFC3339))
}
