//go:build !linux

package etcdtest

import "syscall"

func dieWithParent() *syscall.SysProcAttr { return nil }

// stopped cannot be told here.
func stopped(int) bool { return true }
