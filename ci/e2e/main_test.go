//go:build e2e

package e2e_test

import (
	"os"
	"testing"

	"etcdsnapshot.dev/ci/e2e"
)

var c *e2e.Cluster

func TestMain(m *testing.M) {
	os.Exit(e2e.Main(m, 1, func(cluster *e2e.Cluster) { c = cluster }))
}
