package etcdtest

import "syscall"

// dieWithParent: a test that is killed leaves no etcd behind.
func dieWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
