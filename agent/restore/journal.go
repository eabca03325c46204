package restore

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// journalVersion is the form of the journal that this package writes and reads.
const journalVersion = 1

// journal is what Kubeadm writes down before each step, in a folder beside the data directory, so that it can go on or
// back from wherever it was interrupted. Every step may be done twice.
type journal struct {
	Version int `json:"version"`
	// Step that was begun last, for people.
	Step    string    `json:"step"`
	Started time.Time `json:"started"`
	// Selection of the snapshot as it was asked for.
	Selection string  `json:"selection"`
	Proven    *Proven `json:"snapshot"`
	Config    Config  `json:"member"`

	ManifestsDir string     `json:"manifestsDir"`
	AsideDir     string     `json:"asideDir"`
	Manifests    []string   `json:"manifests"`
	Listeners    []listener `json:"listeners"`
	ReadyURL     string     `json:"readyURL,omitempty"`

	UID      int    `json:"uid"`
	GID      int    `json:"gid"`
	NewData  string `json:"newData"`
	NewWAL   string `json:"newWAL,omitempty"`
	Swaps    []swap `json:"swaps"`
	Revision int64  `json:"restoredRevision,omitempty"`

	// Built, Swapped, Launched (the manifests began to be put back) and Finished say how far it came.
	Built    bool `json:"built"`
	Swapped  bool `json:"swapped"`
	Launched bool `json:"launched"`
	Finished bool `json:"finished"`
	// Aborting says that it goes back.
	Aborting bool `json:"aborting"`
}

// swap puts New in the place of Live, which is kept as Old.
type swap struct {
	New, Live, Old string
	// HadLive says that there was something to replace.
	HadLive bool
	// Rejected is where what was restored is kept when the way back was taken after it had been running.
	Rejected string
}

// workDir is the folder of one restore of a data directory: journal, snapshot and what is being made. It is held by a lock.
type workDir struct {
	path string
	lock *os.File
}

// workPath is where the work folder of a data directory is: on the same file system.
func workPath(data place) string {
	if data.mount {
		return filepath.Join(data.dir, ".restore")
	}
	return data.dir + ".restore"
}

func openWorkDir(data place) (*workDir, error) {
	path := workPath(data)
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("make a folder for the restore: %w", err)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open the folder of the restore: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: another restore of %s is running: %w", path, data.dir, err)
	}
	return &workDir{path: path, lock: f}, nil
}

func (w *workDir) journalFile() string { return filepath.Join(w.path, "journal.json") }
func (w *workDir) database() string    { return filepath.Join(w.path, "snapshot.db") }

// load gives the journal, nil where there is none.
func (w *workDir) load() (*journal, error) {
	data, err := os.ReadFile(w.journalFile())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the journal of the restore that is under way: %w", err)
	}
	j := &journal{}
	if err := json.Unmarshal(data, j); err != nil {
		return nil, fmt.Errorf("read the journal %s of the restore that is under way: %w", w.journalFile(), err)
	}
	if j.Version != journalVersion {
		return nil, refusedf("the journal %s was written by another version of this program (form %d, this one knows %d): go on with that one", w.journalFile(), j.Version, journalVersion)
	}
	return j, nil
}

// save writes the journal so that after a power cut either the old one is there or the new one.
func (w *workDir) save(j *journal) error {
	data, err := json.MarshalIndent(j, "", "  ")
	if err != nil {
		return err
	}
	tmp := w.journalFile() + ".new"
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("write the journal: %w", err)
	}
	_, err = f.Write(append(data, '\n'))
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = renameDurably(tmp, w.journalFile())
	}
	if err != nil {
		return fmt.Errorf("write the journal: %w", err)
	}
	return nil
}

// clear removes all but the journal.
func (w *workDir) clear() error {
	entries, err := os.ReadDir(w.path)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		if path := filepath.Join(w.path, e.Name()); path != w.journalFile() {
			errs = append(errs, os.RemoveAll(path))
		}
	}
	return errors.Join(errs...)
}

// remove removes the folder, the journal last.
func (w *workDir) remove() error {
	err := w.clear()
	if err == nil {
		err = os.RemoveAll(w.path)
	}
	if err != nil {
		return fmt.Errorf("remove the folder of the restore, which is not needed any more: %w", err)
	}
	return nil
}

// close gives up the lock; a folder without anything in it is not left behind.
func (w *workDir) close() {
	_ = os.Remove(w.path) // fails where there is something in it, or it is gone
	w.lock.Close()
}
