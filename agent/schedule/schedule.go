// Package schedule reads a CronJob's schedule as its controller does, to tell when the next run is due and how long a
// cluster may be without one.
package schedule

import (
	"fmt"
	"strings"
	"time"

	"github.com/robfig/cron/v3"
)

// Schedule says when runs are due.
type Schedule struct {
	cron cron.Schedule
	zone *time.Location
}

// Parse reads a schedule: five fields or a word such as @daily. timeZone is an IANA name; "" is UTC, which
// kube-controller-manager's own zone mostly is.
func Parse(spec, timeZone string) (*Schedule, error) {
	zone, err := time.LoadLocation(timeZone)
	if err != nil {
		return nil, fmt.Errorf("time zone %q: %w", timeZone, err)
	}
	// As the API server does. cron's own reading of it panics where no schedule follows.
	if strings.Contains(spec, "TZ") {
		return nil, fmt.Errorf("schedule %q: must not hold a time zone: timeZone is for that", spec)
	}
	c, err := cron.ParseStandard(spec)
	if err != nil {
		return nil, fmt.Errorf("schedule %q: %w", spec, err)
	}
	return &Schedule{cron: c, zone: zone}, nil
}

// Next is the first run after t; the zero time where none is due within five years.
func (s *Schedule) Next(t time.Time) time.Time { return s.cron.Next(t.In(s.zone)) }

// How far Interval looks: a year has all weekends, holidays of the clock and ends of months in it. Schedules that run so
// often that this takes long repeat themselves well before.
const (
	horizon = 366 * 24 * time.Hour
	maxRuns = 20000
)

// Interval is the longest time between two runs after t: of a schedule on weekdays, the weekend. 0 says that there are no
// two runs.
func (s *Schedule) Interval(t time.Time) time.Duration {
	var longest time.Duration
	begin, last := t, s.Next(t)
	for range maxRuns {
		next := s.Next(last)
		if next.IsZero() || last.IsZero() {
			break
		}
		longest = max(longest, next.Sub(last))
		if last = next; last.Sub(begin) > horizon {
			break
		}
	}
	return longest
}
