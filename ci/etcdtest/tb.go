package etcdtest

import "testing"

// logLines is how much of each member's output a failed test shows.
const logLines = 15

// Start is New for tests: the cluster ends with the test, and the members' output is shown if the test failed.
func Start(tb testing.TB, opts Options) *Cluster {
	tb.Helper()
	c, err := New(tb.Context(), tb.TempDir(), opts)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		c.Stop()
		if tb.Failed() {
			for _, m := range c.Members {
				tb.Logf("%s (%s) printed:\n%s", m.Name, m.ClientURL, m.LogTail(logLines))
			}
		}
	})
	return c
}

// MustFill is Cluster.Fill for tests.
func (c *Cluster) MustFill(tb testing.TB, bytes int64) int {
	tb.Helper()
	n, err := c.Fill(tb.Context(), bytes)
	if err != nil {
		tb.Fatal(err)
	}
	return n
}

// StartProxy is NewProxy for tests: it ends with the test.
func StartProxy(tb testing.TB, endpoint string) *Proxy {
	tb.Helper()
	p, err := NewProxy(endpoint)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(p.Close)
	return p
}

// StartFake is FakeMaintenance.Serve for tests: it ends with the test.
func StartFake(tb testing.TB, f *FakeMaintenance) string {
	tb.Helper()
	url, stop, err := f.Serve()
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(stop)
	return url
}
