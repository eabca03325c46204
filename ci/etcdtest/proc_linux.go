package etcdtest

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// dieWithParent: a test that is killed leaves no etcd behind.
func dieWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }

// stopped reports whether SIGSTOP has reached every thread of the process, or it is gone.
func stopped(pid int) bool {
	stats, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil {
		return false
	}
	for _, stat := range stats {
		data, err := os.ReadFile(stat)
		if err == nil && !bytes.Contains(data, []byte(") T ")) {
			return false
		}
	}
	return true
}
