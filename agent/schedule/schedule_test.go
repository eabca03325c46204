package schedule_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"etcdsnapshot.dev/agent/schedule"
)

var noon = time.Date(2026, 12, 2, 12, 0, 0, 0, time.UTC) // a Wednesday

func TestNext(t *testing.T) {
	for _, c := range []struct{ spec, zone, want string }{
		{"0 */6 * * *", "", "2026-12-02T18:00:00Z"},
		{"30 2 * * mon-fri", "Europe/Berlin", "2026-12-03T02:30:00+01:00"},
		{"30 12 * * *", "Asia/Kolkata", "2026-12-03T12:30:00+05:30"},
		{"@hourly", "", "2026-12-02T13:00:00Z"},
		{"0 0 1 1 *", "", "2027-01-01T00:00:00Z"},
	} {
		s, err := schedule.Parse(c.spec, c.zone)
		require.NoError(t, err)
		require.Equal(t, c.want, s.Next(noon).Format(time.RFC3339), "%s %s", c.spec, c.zone)
	}
}

func TestInterval(t *testing.T) {
	for _, c := range []struct {
		spec, zone string
		want       time.Duration
	}{
		{"0 */6 * * *", "", 6 * time.Hour},
		{"*/5 * * * *", "", 5 * time.Minute},
		{"0 2 * * *", "", 24 * time.Hour},
		{"0 12 * * *", "Europe/Berlin", 25 * time.Hour}, // the day on which summer time ends
		{"0 2 * * mon-fri", "", 72 * time.Hour},
		{"0 8,20 * * 1-5", "", 60 * time.Hour},
		{"0 0 1 * *", "", 31 * 24 * time.Hour},
		{"0 0 1 1 *", "", 365 * 24 * time.Hour},
		{"0 0 30 2 *", "", 0}, // never
	} {
		s, err := schedule.Parse(c.spec, c.zone)
		require.NoError(t, err)
		require.Equal(t, c.want, s.Interval(noon), "%s %s", c.spec, c.zone)
	}
}

func TestParseRefuses(t *testing.T) {
	_, err := schedule.Parse("61 * * * *", "")
	require.ErrorContains(t, err, `schedule "61 * * * *"`)
	for _, spec := range []string{"TZ=", "CRON_TZ=Europe/Berlin 0 2 * * *"} {
		_, err = schedule.Parse(spec, "")
		require.ErrorContains(t, err, "must not hold a time zone")
	}
	_, err = schedule.Parse("@daily", "Europe/Atlantis")
	require.ErrorContains(t, err, `time zone "Europe/Atlantis"`)
}
