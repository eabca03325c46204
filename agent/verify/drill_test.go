package verify

import (
	"log/slog"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"etcdsnapshot.dev/ci/etcdtest"
)

func scratch(t *testing.T) *Scratch {
	t.Helper()
	s, err := OpenScratch(t.TempDir(), slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, s.Close())
		require.NoDirExists(t, s.Path())
	})
	return s
}

func TestDrillOfEveryVersion(t *testing.T) {
	for _, version := range etcdtest.Versions {
		t.Run(version, func(t *testing.T) {
			c := real(t, version)
			m := manifestOf(t, c.db, c.db, "none", false, c.revision)
			facts, db, err := proven(t, c.db, m, Options{})
			require.NoError(t, err)
			s := scratch(t)
			d, err := runDrill(t.Context(), s, db, facts, false, drillCommand, slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug})))
			require.NoError(t, err)
			require.Equal(t, c.keys, d.Keys)
			require.Equal(t, c.revision, d.Revision)
			t.Logf("%+v", d)
		})
	}
}
