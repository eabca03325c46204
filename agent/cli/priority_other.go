//go:build !linux

package cli

// stepBack does nothing: etcd's nodes run Linux.
func stepBack() {}
