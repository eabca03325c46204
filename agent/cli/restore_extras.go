package cli

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"etcdsnapshot.dev/agent/extras"
	"etcdsnapshot.dev/agent/restore"
)

// extrasRow is one file, folder or link of a snapshot's extras.
type extrasRow struct {
	Path string `json:"path"`
	// Action is written or same; of a dry run write, same or differs.
	Action string `json:"action"`
	Mode   string `json:"mode"`
	UID    int    `json:"uid"`
	GID    int    `json:"gid"`
	Size   int    `json:"size"`
	Link   string `json:"link,omitempty"`
}

// runExtras extracts the files of the node that lie beside a snapshot.
func (f *restoreFlags) runExtras(ctx context.Context, e *env, want restore.Selection) error {
	dir, err := filepath.Abs(f.extras)
	if err != nil {
		return err
	}
	r, done, err := f.request(ctx, e, want)
	defer done()
	if err != nil {
		return err
	}
	entries, from, err := restore.Extras(ctx, r)
	e.status.clear()
	if err != nil {
		return err
	}
	var changes []extras.Change
	if f.dryRun {
		changes, err = extras.Compare(dir, entries)
	} else {
		changes, err = extras.Place(dir, entries, f.force)
	}
	if err != nil {
		err = fmt.Errorf("--extras: %w", err)
		if errors.Is(err, extras.ErrExists) {
			return &usageError{err}
		}
		return err
	}
	rows := []extrasRow{}
	for _, c := range changes {
		rows = append(rows, extrasRow{Path: filepath.Join(dir, c.Path), Action: f.extrasAction(c.State), Mode: c.Mode.String(),
			UID: c.UID, GID: c.GID, Size: len(c.Data), Link: c.Link})
	}
	if f.output == "json" {
		return printJSON(e.stdout, map[string]any{"snapshot": from.Name, "uri": from.URI, "dryRun": f.dryRun, "files": rows})
	}
	verb := "Extracted"
	if f.dryRun {
		verb = "A dry run, which changes nothing, of extracting"
	}
	fmt.Fprintf(e.stdout, "%s the extras of %s from %s:\n\n", verb, from.Name, from.URI)
	t := newTable(e.stdout, "ACTION", "MODE", "OWNER", "SIZE", "PATH")
	for _, row := range rows {
		path := row.Path
		if row.Link != "" {
			path += " -> " + row.Link
		}
		t.row(row.Action, row.Mode, fmt.Sprintf("%d:%d", row.UID, row.GID), humanBytes(int64(row.Size)), path)
	}
	return t.flush()
}

func (f *restoreFlags) extrasAction(s extras.State) string {
	switch {
	case s == extras.StateSame:
		return "same"
	case !f.dryRun:
		return "written"
	case s == extras.StateNew:
		return "write"
	}
	return "differs"
}
