//go:build !linux

package cluster

import (
	"context"
	"errors"
	"net"
	"os/exec"
)

var errOther = errors.New("a cluster of namespaces needs Linux: use a cluster of another kind (see CONTRIBUTING.md)")

func supported() error                                         { return errOther }
func inNamespaces(*exec.Cmd)                                   {}
func killGroup(*exec.Cmd)                                      {}
func opaque(string) error                                      { return errOther }
func processOf(string) int                                     { return 0 }
func makeCgroups(string) error                                 { return errOther }
func removeCgroups(string) error                               { return nil }
func (n *Node) Kill() error                                    { return nil }
func (n *Node) Listen(string) (net.Listener, error)            { return nil, errOther }
func (n *Node) Dial(context.Context, string) (net.Conn, error) { return nil, errOther }
