//go:build !linux

package emulator

import "syscall"

func dieWithParent() *syscall.SysProcAttr { return nil }
