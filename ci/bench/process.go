//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Usage is what the system accounts to a process and to what it has waited for.
type Usage struct {
	// Wall, User and System are seconds.
	Wall, User, System float64
	// PeakMiB is the largest resident size of any one process among them.
	PeakMiB float64
	// OwnMiB is the most memory of its own that the command had at a time (RssAnon in proc_pid_status(5)): without the pages of
	// files that it maps, which the system takes back where it needs them.
	OwnMiB float64 `json:",omitempty"`
	// WrittenMiB is what they made the file system write.
	WrittenMiB float64
}

// CPU is the time on the processors, in seconds.
func (u Usage) CPU() float64 { return u.User + u.System }

// task is a command to measure.
type task struct {
	Args []string
	// Dir is its current folder, Env what is added to the environment.
	Dir string
	Env []string
	// Core is the processor it has to stay on; -1 is any.
	Core int
	// Stdout is the file for what it prints; empty drops it.
	Stdout string
}

// childEnv tells this program that it is the parent of a measured command.
const childEnv = "ETCD_SNAPSHOT_BENCH_TASK"

// measure runs a task. A process counts as its own peak what its parent had before exec, so that the parent must be
// small: it is this program once more, which does nothing else.
func measure(ctx context.Context, t task) (Usage, error) {
	exe, err := os.Executable()
	if err != nil {
		return Usage{}, err
	}
	text, err := json.Marshal(t)
	if err != nil {
		return Usage{}, err
	}
	cmd := exec.CommandContext(ctx, exe)
	cmd.Env = append(os.Environ(), childEnv+"="+string(text))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	out, err := cmd.Output()
	if ctx.Err() != nil {
		return Usage{}, context.Cause(ctx)
	}
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%w\n%s", err, exit.Stderr)
		}
		return Usage{}, fmt.Errorf("%s: %w", strings.Join(t.Args, " "), err)
	}
	var u Usage
	return u, json.Unmarshal(out, &u)
}

// asChild is the other side of measure.
func asChild(text string) error {
	var t task
	if err := json.Unmarshal([]byte(text), &t); err != nil {
		return err
	}
	if err := os.Unsetenv(childEnv); err != nil {
		return err
	}
	runtime.LockOSThread() // the command inherits the thread's processors
	if err := stayOn(0, t.Core); err != nil {
		return err
	}
	var stderr strings.Builder
	cmd := exec.Command(t.Args[0], t.Args[1:]...)
	cmd.Dir, cmd.Env = t.Dir, append(os.Environ(), t.Env...)
	cmd.Stderr = &stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if t.Stdout != "" {
		f, err := os.Create(t.Stdout)
		if err != nil {
			return err
		}
		defer f.Close()
		cmd.Stdout = f
	}
	begin := time.Now()
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan struct{})
	own := make(chan float64)
	go func() { own <- ownMemory(cmd.Process.Pid, ended) }()
	err := cmd.Wait()
	wall := time.Since(begin)
	close(ended)
	ownMiB := <-own
	if err != nil {
		return fmt.Errorf("%w\n%s", err, tail(stderr.String()))
	}
	r := cmd.ProcessState.SysUsage().(*syscall.Rusage) // what it is on Linux
	return json.NewEncoder(os.Stdout).Encode(Usage{
		Wall: wall.Seconds(), User: cmd.ProcessState.UserTime().Seconds(), System: cmd.ProcessState.SystemTime().Seconds(),
		PeakMiB: float64(r.Maxrss) / 1024, OwnMiB: ownMiB, WrittenMiB: float64(r.Oublock) / 2048, // KiB and blocks of 512 bytes
	})
}

// ownMemory samples a process's own memory until ended is closed, and gives the most, in MiB.
func ownMemory(pid int, ended <-chan struct{}) (mib float64) {
	for tick := time.NewTicker(5 * time.Millisecond); ; {
		select {
		case <-ended:
			tick.Stop()
			return mib
		case <-tick.C:
			status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)) // gone once it has ended
			_, after, _ := strings.Cut(string(status), "RssAnon:")
			var kib float64
			if _, err := fmt.Sscan(after, &kib); err == nil {
				mib = max(mib, kib/1024)
			}
		}
	}
}

func tail(s string) string { return s[max(0, len(s)-2000):] }

// stayOn keeps the thread (0 is the calling one) on a processor.
func stayOn(tid, core int) error {
	if core < 0 {
		return nil
	}
	var set unix.CPUSet
	set.Set(core)
	if err := unix.SchedSetaffinity(tid, &set); err != nil {
		return fmt.Errorf("keep on processor %d: %w", core, err)
	}
	return nil
}

// keepOn keeps all threads of a process on a processor, or lets them go with -1.
func keepOn(pid, core int) error {
	var set unix.CPUSet
	if core >= 0 {
		set.Set(core)
	} else if err := unix.SchedGetaffinity(0, &set); err != nil {
		return err
	}
	// Threads that are made meanwhile inherit from one that was seen before or after; twice over sees both.
	for range 2 {
		entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
		if err != nil {
			return err
		}
		for _, e := range entries {
			tid, err := strconv.Atoi(e.Name())
			if err != nil {
				return err
			}
			if err := unix.SchedSetaffinity(tid, &set); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("keep etcd on processor %d: %w", core, err)
			}
		}
	}
	return nil
}
