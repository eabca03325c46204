// Command release builds everything that a release consists of, into one folder, so that two runs on one commit give
// the same bytes:
//
//	etcd-snapshot-agent_VERSION_OS_ARCH.tar.gz   the binary, its licence and those of all that is in it
//	etcd-snapshot-VERSION.tgz                    the chart, and .prov with -sign-key
//	etcd-snapshot-agent-VERSION.oci.tar          the image for every Linux platform, with buildah and the Dockerfile
//	*.spdx.json                                  what each binary is made of, with syft
//	crds.yaml                                    the CRDs alone, for GitOps with crds.enabled=false
//	checksums.txt                                sha256 of all of the above
//
// Nothing is published: the release workflow pushes what lies in the folder.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	r := release{}
	var platforms string
	flag.StringVar(&r.version, "version", "", "the version, without a leading v")
	flag.StringVar(&r.ldflags, "ldflags", "", "flags for the linker")
	flag.StringVar(&r.out, "out", "dist", "folder for what is built; emptied first")
	flag.StringVar(&platforms, "platforms", "linux/amd64,linux/arm64,darwin/amd64,darwin/arm64", "what to build for")
	flag.BoolVar(&r.image, "image", true, "build the image (needs buildah)")
	flag.BoolVar(&r.sbom, "sbom", true, "write SBOMs (builds syft)")
	flag.StringVar(&r.keyring, "sign-key", "", "PGP keyring (file) to sign the chart with; the passphrase is read from HELM_KEY_PASSPHRASE")
	flag.StringVar(&r.signer, "signer", "", "which key of the keyring")
	flag.Parse()
	r.platforms = strings.Split(platforms, ",")
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := r.run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

type release struct {
	version, ldflags, out string
	platforms             []string
	image, sbom           bool
	keyring, signer       string

	// when is the time stamp of every file: the commit's time.
	when time.Time
}

func (r *release) run(ctx context.Context) error {
	if r.version == "" || strings.HasPrefix(r.version, "v") {
		return fmt.Errorf("-version %q: want one without a leading v, such as 0.1.0", r.version)
	}
	var err error
	if r.when, err = commitTime(ctx); err != nil {
		return err
	}
	if err := os.RemoveAll(r.out); err != nil {
		return err
	}
	if err := os.MkdirAll(r.out, 0o755); err != nil {
		return err
	}
	// The licences of what is linked in ask that they be passed on with it.
	licences, err := os.ReadFile(filepath.Join("bin", thirdParty))
	if err != nil {
		return fmt.Errorf("the licences, which make collects: %w", err)
	}
	if err := os.WriteFile(filepath.Join(r.out, thirdParty), licences, 0o644); err != nil {
		return err
	}
	var linux []string
	for _, p := range r.platforms {
		goos, goarch, ok := strings.Cut(p, "/")
		if !ok {
			return fmt.Errorf("-platforms: %q is not OS/ARCH", p)
		}
		binary, err := r.build(ctx, goos, goarch)
		if err != nil {
			return err
		}
		if goos == "linux" {
			linux = append(linux, p)
		}
		if err := r.archive(binary, goos, goarch); err != nil {
			return err
		}
		if r.sbom {
			if err := r.bill(ctx, binary, goos, goarch); err != nil {
				return err
			}
		}
	}
	if err := r.packageChart(); err != nil {
		return fmt.Errorf("the chart: %w", err)
	}
	if err := r.crds(); err != nil {
		return fmt.Errorf("the CRDs: %w", err)
	}
	if r.image {
		if err := r.buildImage(ctx, linux); err != nil {
			return fmt.Errorf("the image: %w", err)
		}
	}
	return r.checksums()
}

// commitTime is when the commit was made; SOURCE_DATE_EPOCH wins where there is no repository
// (https://reproducible-builds.org/specs/source-date-epoch/).
func commitTime(ctx context.Context) (time.Time, error) {
	text := os.Getenv("SOURCE_DATE_EPOCH")
	if text == "" {
		out, err := exec.CommandContext(ctx, "git", "log", "-1", "--format=%ct").Output()
		if err != nil {
			return time.Time{}, fmt.Errorf("the commit's time: set SOURCE_DATE_EPOCH outside a repository: %w", err)
		}
		text = strings.TrimSpace(string(out))
	}
	seconds, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("SOURCE_DATE_EPOCH: %w", err)
	}
	return time.Unix(seconds, 0).UTC(), nil
}

// build compiles the agent into bin/, where the Dockerfile looks for it, and gives the binary's path.
func (r *release) build(ctx context.Context, goos, goarch string) (string, error) {
	binary := filepath.Join("bin", "etcd-snapshot-agent-"+goos+"-"+goarch)
	return binary, run(ctx, []string{"CGO_ENABLED=0", "GOOS=" + goos, "GOARCH=" + goarch},
		"go", "build", "-trimpath", "-buildvcs=false", "-ldflags", r.ldflags, "-o", binary, "./agent")
}

// bill writes the binary's SBOM as SPDX, from the module list that Go puts into the binary itself.
func (r *release) bill(ctx context.Context, binary, goos, goarch string) error {
	out := filepath.Join(r.out, fmt.Sprintf("etcd-snapshot-agent_%s_%s_%s.spdx.json", r.version, goos, goarch))
	err := run(ctx, []string{"SYFT_CHECK_FOR_APP_UPDATE=false"}, "go", "tool", "-modfile=ci/tools/syft/go.mod", "syft", "scan", "-q",
		"--source-name", "etcd-snapshot-agent", "--source-version", r.version, "file:"+binary, "-o", "spdx-json="+out)
	if err != nil {
		return err
	}
	return fixBill(out, r.when)
}

// buildImage builds the image for every platform from the Dockerfile and what lies in bin/.
func (r *release) buildImage(ctx context.Context, platforms []string) error {
	if _, err := exec.LookPath("buildah"); err != nil {
		return errors.New("buildah is not here: install it, or leave the image out with -image=false")
	}
	name := "localhost/etcd-snapshot-agent:" + r.version
	// An earlier run's list would be added to.
	_ = exec.CommandContext(ctx, "buildah", "manifest", "rm", name).Run()
	for _, p := range platforms {
		_, arch, _ := strings.Cut(p, "/")
		err := run(ctx, nil, "buildah", "build", "--quiet", "--layers=false", "--timestamp", strconv.FormatInt(r.when.Unix(), 10),
			"--platform", p, "--build-arg", "TARGETARCH="+arch, "--manifest", name,
			"--label", "org.opencontainers.image.title=etcd-snapshot-agent",
			"--label", "org.opencontainers.image.version="+r.version,
			"--label", "org.opencontainers.image.licenses=Apache-2.0", ".")
		if err != nil {
			return err
		}
	}
	archive := filepath.Join(r.out, "etcd-snapshot-agent-"+r.version+".oci.tar")
	if err := run(ctx, nil, "buildah", "manifest", "push", "--quiet", "--all", name, "oci-archive:"+archive+":"+r.version); err != nil {
		return err
	}
	return r.sameTar(archive)
}

func run(ctx context.Context, env []string, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = slices.Concat(os.Environ(), env)
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s %s: %w", name, strings.Join(args, " "), err)
	}
	return nil
}
