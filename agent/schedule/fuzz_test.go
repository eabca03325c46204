package schedule

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// FuzzParse: a schedule is refused, or its next run lies in the future and its interval is found, in bounded time.
func FuzzParse(f *testing.F) {
	for _, spec := range []string{"0 */6 * * *", "@daily", "@every 1h", "@every 1ns", "0 0 30 2 *", "* * * * *", "0 0 29 2 1", "TZ=Europe/Berlin 0 2 * * *", "CRON_TZ=", "TZ=", "*/0 * * * *", "1-0 * * * *", ""} {
		f.Add(spec, "Europe/Berlin", int64(1_750_000_000))
	}
	f.Fuzz(func(t *testing.T, spec, zone string, seconds int64) {
		s, err := Parse(spec, zone)
		if err != nil {
			return
		}
		now := time.Unix(seconds%4_000_000_000, 0)
		if next := s.Next(now); !next.IsZero() {
			require.True(t, next.After(now), "%s", next)
		}
		require.GreaterOrEqual(t, s.Interval(now), time.Duration(0))
	})
}
