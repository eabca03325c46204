package kubetest

import (
	"context"
	"fmt"
	"os"
	"testing"

	"etcdsnapshot.dev/ci/etcdtest"
)

// logLines is how much of the server's output a failed test shows.
const logLines = 40

// New starts a server on an etcd of its own, with TLS; both end with the test.
func New(tb testing.TB, args ...string) *Server {
	tb.Helper()
	s, err := Start(tb.Context(), tb.TempDir(), etcdtest.Start(tb, etcdtest.Options{TLS: true}), args...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := s.Kill(); err != nil {
			tb.Error(err)
		}
		if tb.Failed() {
			tb.Logf("kube-apiserver printed:\n%s", s.LogTail(logLines))
		}
	})
	return s
}

// Main runs a package's tests around one server that they share, which use is told of first. It gives the code that
// TestMain exits with.
func Main(m *testing.M, use func(*Server)) int {
	code := 1
	err := With(context.Background(), func(s *Server) error {
		use(s)
		code = m.Run()
		return nil
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, "kubetest:", err)
		return 1
	}
	return code
}
