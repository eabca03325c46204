package doctor

import (
	"errors"
	"fmt"
	"time"
)

const (
	// clockWarn is beyond what rounding to seconds and a slow answer make.
	clockWarn = 10 * time.Second
	// clockFail is where object stores begin to refuse signed requests (S3 and Azure: 15 minutes).
	clockFail = 15 * time.Minute
)

// ahead tells by how much the clock here is ahead of one that showed server, in whole seconds, some time between begin and
// end. What the rounding and the waiting may have made is not counted.
func ahead(begin, end, server time.Time) time.Duration {
	switch {
	case server.Before(begin.Add(-time.Second)):
		return begin.Add(-time.Second).Sub(server)
	case server.After(end.Add(time.Second)):
		return end.Add(time.Second).Sub(server)
	}
	return 0
}

func clock(subject string, off time.Duration) Finding {
	const (
		name   = "clock"
		remedy = "Set this node's clock right: is its time service running (timedatectl, chronyc tracking)?"
	)
	about := "the clock here agrees"
	if s := off.Round(time.Second); s > 0 {
		about = fmt.Sprintf("the clock here is %s ahead", s)
	} else if s < 0 {
		about = fmt.Sprintf("the clock here is %s behind", -s)
	}
	switch {
	case off.Abs() >= clockFail:
		return failed(name, subject, errors.New(about), remedy)
	case off.Abs() >= clockWarn:
		return warned(name, subject, remedy, "%s", about)
	}
	return ok(name, subject, "%s", about)
}
