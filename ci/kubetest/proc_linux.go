package kubetest

import "syscall"

// dieWithParent: a test that is killed leaves no server behind.
func dieWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
