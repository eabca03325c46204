package cli

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// niceness is that of the verbs that work beside a living etcd: of nice(1)'s default, so that etcd's and the API server's
// threads come first where all want a processor.
const niceness = 10

// stepBack lowers the priority of this process, whose threads have one each (see setpriority(2), "C library/kernel
// differences"). Threads to come have that of the thread that makes them. A lower one than niceness stays. That the
// system does not do it is no reason not to take a snapshot.
func stepBack() {
	// A thread that is made meanwhile has that of one that was seen before or after: twice over sees both.
	for range 2 {
		tasks, err := os.ReadDir("/proc/self/task")
		if err != nil {
			return
		}
		for _, t := range tasks {
			tid, err := strconv.Atoi(t.Name())
			if err != nil {
				continue
			}
			// The system call gives 20 less the niceness.
			if now, err := unix.Getpriority(unix.PRIO_PROCESS, tid); err == nil && 20-now < niceness {
				_ = unix.Setpriority(unix.PRIO_PROCESS, tid, niceness)
			}
		}
	}
}
