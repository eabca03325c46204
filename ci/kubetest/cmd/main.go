// Command cmd runs a kube-apiserver with the CRDs of etcd-snapshot on an etcd of its own, for trying things out: it
// prints what a shell needs to use both, and ends with Ctrl-C.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"etcdsnapshot.dev/agent/api"
	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/ci/kubetest"
	"etcdsnapshot.dev/ci/parts"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := kubetest.With(ctx, func(s *kubetest.Server) error { return run(ctx, s, os.Stdout) }); err != nil {
		fmt.Fprintln(os.Stderr, "kubetest:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, s *kubetest.Server, out io.Writer) error {
	for _, resource := range []string{v1.PolicyResource, v1.SnapshotResource} {
		crd, err := api.CRD(resource)
		if err != nil {
			return err
		}
		if err := s.Apply(ctx, "", crd); err != nil {
			return err
		}
	}
	binaries, err := parts.Dir(ctx, "kubernetes")
	if err != nil {
		return err
	}
	config := filepath.Join(s.Dir(), "kubeconfig")
	if err := kubetest.WriteKubeconfig(config, s.Admin(), "kube-system"); err != nil {
		return err
	}
	certs := s.Etcd.Certs
	fmt.Fprintf(out, "export KUBECONFIG=%s PATH=%s:$PATH\n", config, binaries)
	fmt.Fprintf(out, "# etcd: {endpoints: [%q], caFile: %s, certFile: %s, keyFile: %s}\n", s.Etcd.Endpoints()[0], certs.CAFile, certs.ClientCertFile, certs.ClientKeyFile)
	<-ctx.Done()
	return nil
}
