package main

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/provenance"
)

const chartDir = "charts/etcd-snapshot"

// file is one file of an archive.
type file struct {
	name string
	mode int64
	data []byte
}

// writeTar writes the files in the order of their names, with one time and no owner, so that the bytes depend on the
// files alone.
func writeTar(w io.Writer, files []file, when time.Time) error {
	slices.SortFunc(files, func(a, b file) int { return cmp.Compare(a.name, b.name) })
	t := tar.NewWriter(w)
	for _, f := range files {
		h := &tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.data)), ModTime: when, Typeflag: tar.TypeReg, Format: tar.FormatUSTAR}
		if err := t.WriteHeader(h); err != nil {
			return err
		}
		if _, err := t.Write(f.data); err != nil {
			return err
		}
	}
	return t.Close()
}

func writeTarGz(name string, files []file, when time.Time) error {
	var b bytes.Buffer
	z, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		return err
	}
	if err := writeTar(z, files, when); err != nil {
		return err
	}
	if err := z.Close(); err != nil {
		return err
	}
	return os.WriteFile(name, b.Bytes(), 0o644)
}

// thirdParty is the file with the licences of all that is linked into the binaries.
const thirdParty = "THIRD_PARTY_LICENSES.txt"

// archive packs one binary and the licences.
func (r *release) archive(binary, goos, goarch string) error {
	program, err := os.ReadFile(binary)
	if err != nil {
		return err
	}
	licence, err := os.ReadFile("LICENSE")
	if err != nil {
		return err
	}
	others, err := os.ReadFile(filepath.Join(r.out, thirdParty))
	if err != nil {
		return err
	}
	name := fmt.Sprintf("etcd-snapshot-agent_%s_%s_%s", r.version, goos, goarch)
	return writeTarGz(filepath.Join(r.out, name+".tar.gz"), []file{
		{name + "/etcd-snapshot-agent", 0o755, program},
		{name + "/LICENSE", 0o644, licence},
		{name + "/" + thirdParty, 0o644, others},
	}, r.when)
}

// packageChart writes the chart's package. A release has the chart's own version; any other build (a snapshot) says
// its version in Chart.yaml, so that the chart asks for the image that was built with it.
func (r *release) packageChart() error {
	c, err := loader.LoadDir(chartDir)
	if err != nil {
		return err
	}
	if err := c.Validate(); err != nil {
		return err
	}
	var files []file
	for _, f := range c.Raw {
		data := f.Data
		if f.Name == "Chart.yaml" && c.Metadata.Version != r.version {
			data = bytes.ReplaceAll(data, []byte(c.Metadata.Version), []byte(r.version))
		}
		files = append(files, file{path.Join(c.Name(), f.Name), 0o644, data})
	}
	target := filepath.Join(r.out, c.Name()+"-"+r.version+".tgz")
	if err := writeTarGz(target, files, r.when); err != nil {
		return err
	}
	packed, err := loader.LoadFile(target)
	if err != nil {
		return fmt.Errorf("the package does not load again: %w", err)
	}
	if packed.Metadata.Version != r.version || packed.Metadata.AppVersion != r.version {
		return fmt.Errorf("the package says version %s and appVersion %s, want %s in both: see %s/Chart.yaml",
			packed.Metadata.Version, packed.Metadata.AppVersion, r.version, chartDir)
	}
	if r.keyring == "" {
		return nil
	}
	return r.sign(target)
}

// sign writes Helm's provenance file beside the package (https://helm.sh/docs/topics/provenance/).
func (r *release) sign(target string) error {
	signer, err := provenance.NewFromKeyring(r.keyring, r.signer)
	if err != nil {
		return fmt.Errorf("-sign-key: %w", err)
	}
	err = signer.DecryptKey(func(string) ([]byte, error) { return []byte(os.Getenv("HELM_KEY_PASSPHRASE")), nil })
	if err != nil {
		return fmt.Errorf("-sign-key: the passphrase in HELM_KEY_PASSPHRASE does not open the key: %w", err)
	}
	text, err := signer.ClearSign(target)
	if err != nil {
		return err
	}
	return os.WriteFile(target+".prov", []byte(text), 0o644)
}

// crds writes the CRDs alone, for those who install them apart from the chart.
func (r *release) crds() error {
	var b bytes.Buffer
	names, err := filepath.Glob("agent/api/crds/*.yaml")
	if err != nil {
		return err
	}
	if len(names) == 0 {
		return errors.New("none in agent/api/crds: run this in the repository's top folder")
	}
	for _, name := range names {
		crd, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		fmt.Fprintf(&b, "---\n%s", bytes.TrimPrefix(crd, []byte("---\n")))
	}
	return os.WriteFile(filepath.Join(r.out, "crds.yaml"), b.Bytes(), 0o644)
}

// fixBill makes an SPDX document depend on the binary alone: the time is the commit's, and the namespace, random by
// the tool's default, comes from the document's own content.
func fixBill(name string, when time.Time) error {
	data, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	var doc map[string]any
	if err := json.Unmarshal(data, &doc); err != nil {
		return err
	}
	created, ok := doc["creationInfo"].(map[string]any)
	if !ok {
		return fmt.Errorf("%s: no creationInfo: not an SPDX document", name)
	}
	created["created"] = when.Format(time.RFC3339)
	delete(doc, "documentNamespace")
	if data, err = json.Marshal(doc); err != nil {
		return err
	}
	sum := sha256.Sum256(data)
	doc["documentNamespace"] = "https://etcdsnapshot.dev/spdx/" + hex.EncodeToString(sum[:16])
	if data, err = json.MarshalIndent(doc, "", " "); err != nil {
		return err
	}
	return os.WriteFile(name, append(data, '\n'), 0o644)
}

// sameTar writes a tar anew with its files in order and the times of the commit.
func (r *release) sameTar(name string) error {
	in, err := os.Open(name)
	if err != nil {
		return err
	}
	defer in.Close()
	var files []file
	t := tar.NewReader(in)
	for {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if h.Typeflag != tar.TypeReg {
			continue
		}
		data, err := io.ReadAll(t)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		files = append(files, file{h.Name, 0o644, data})
	}
	out, err := os.CreateTemp(r.out, ".image-*")
	if err != nil {
		return err
	}
	defer os.Remove(out.Name())
	defer out.Close()
	if err := out.Chmod(0o644); err != nil {
		return err
	}
	if err := writeTar(out, files, r.when); err != nil {
		return err
	}
	if err := out.Close(); err != nil {
		return err
	}
	return os.Rename(out.Name(), name)
}

// checksums writes checksums.txt in the form that `sha256sum -c` reads.
func (r *release) checksums() error {
	entries, err := os.ReadDir(r.out)
	if err != nil {
		return err
	}
	var b strings.Builder
	for _, e := range entries {
		f, err := os.Open(filepath.Join(r.out, e.Name()))
		if err != nil {
			return err
		}
		h := sha256.New()
		_, err = io.Copy(h, f)
		f.Close()
		if err != nil {
			return err
		}
		fmt.Fprintf(&b, "%x  %s\n", h.Sum(nil), e.Name())
	}
	return os.WriteFile(filepath.Join(r.out, "checksums.txt"), []byte(b.String()), 0o644)
}
