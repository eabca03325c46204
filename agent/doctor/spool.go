package doctor

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/agent/archive"
	"etcdsnapshot.dev/agent/units"
	"etcdsnapshot.dev/agent/verify"
)

// leastRatio is the part of a database's size that a compressed snapshot hardly stays below: what is left of Kubernetes'
// objects by zstd is a third to a tenth.
const leastRatio = 10

// checkSpool makes and removes a spool file, and compares the room with the database.
func (r *run) checkSpool(context.Context) []Finding {
	const (
		name   = "spool"
		remedy = "Give --spool-dir a folder with more room, or the chart's spool.sizeLimit a larger size."
	)
	probe, err := archive.NewName("doctor", time.Now(), rand.Reader)
	if err != nil {
		return []Finding{failed(name, r.SpoolDir, err, remedy)}
	}
	spool, err := archive.CreateSpool(r.SpoolDir, probe)
	if err == nil {
		err = errors.Join(writeByte(spool), spool.Close())
	}
	if err != nil {
		return []Finding{failed(name, r.SpoolDir, err, "Choose a folder that can be written with --spool-dir.")}
	}
	free, err := verify.FreeSpace(r.SpoolDir)
	if err != nil {
		return []Finding{failed(name, r.SpoolDir, err, "Check the disk and the mount.")}
	}
	about := units.Bytes(free) + " free"
	if r.SpoolLimit > 0 && r.SpoolLimit < free {
		free, about = r.SpoolLimit, fmt.Sprintf("%s, %s allowed", about, units.Bytes(r.SpoolLimit))
	}
	size := int64(0)
	for _, m := range r.survey().members {
		size = max(size, m.DBSize)
	}
	least, compressed := size/leastRatio, r.Request.Policy.Spec.Compression.Algorithm != v1.CompressionNone
	if !compressed {
		least = size
	}
	switch {
	case size == 0:
		return []Finding{ok(name, r.SpoolDir, "%s; the size of the database is not known", about)}
	case free < least:
		return []Finding{failed(name, r.SpoolDir, fmt.Errorf("%s, and the database has %s", about, units.Bytes(size)), remedy)}
	case free < size:
		return []Finding{warned(name, r.SpoolDir, remedy, "%s, which is enough only if the database of %s shrinks to that", about, units.Bytes(size))}
	}
	return []Finding{ok(name, r.SpoolDir, "%s for a database of %s", about, units.Bytes(size))}
}

func writeByte(s *archive.Spool) error {
	if _, err := s.Write([]byte{0}); err != nil {
		return err
	}
	_, err := s.Finish()
	return err
}
