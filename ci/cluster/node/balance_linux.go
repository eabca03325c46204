package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"time"
)

// inherited is the listener outside the node's network that ci/cluster handed over: who runs the tests has no other way in.
const inherited = 3

// balance serves the control plane's endpoint on the node's loopback, as haproxy would, and on the inherited listener: a
// connection goes to the first API server that accepts it, the node's own before others'.
func balance(addresses []string) error {
	outside, err := net.FileListener(os.NewFile(inherited, "listener"))
	if err != nil {
		return fmt.Errorf("the inherited listener: %w", err)
	}
	inside, err := net.Listen("tcp", "127.0.0.1:8443")
	if err != nil {
		return err
	}
	for _, l := range []net.Listener{outside, inside} {
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					fmt.Fprintln(os.Stderr, "node: accept:", err)
					return
				}
				go forward(c.(*net.TCPConn), addresses)
			}
		}()
	}
	return nil
}

func forward(client *net.TCPConn, addresses []string) {
	defer client.Close()
	for _, address := range addresses {
		c, err := net.DialTimeout("tcp", net.JoinHostPort(address, "6443"), time.Second)
		if err != nil {
			continue
		}
		server := c.(*net.TCPConn)
		defer server.Close()
		go func() {
			_, _ = io.Copy(server, client) // a broken connection is its client's to see
			_ = server.CloseWrite()
		}()
		_, _ = io.Copy(client, server)
		return
	}
}
