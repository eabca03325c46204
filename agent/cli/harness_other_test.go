//go:build !linux

package cli_test

import (
	"syscall"
	"testing"
)

func dieWithParent() *syscall.SysProcAttr { return nil }

// tmpfs is Linux's.
func tmpfs(t *testing.T, _ string) string {
	t.Helper()
	t.Skip("a small file system is only made on Linux")
	return ""
}

func readOnly(t *testing.T, _ string) { t.Helper() }
