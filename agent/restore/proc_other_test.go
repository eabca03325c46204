//go:build !linux

package restore_test

import "syscall"

func dieWithParent() *syscall.SysProcAttr { return nil }
