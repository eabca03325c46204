// Package image makes container images of static programs, without a builder and without a registry: one layer, in the
// archive that docker save writes and that docker, podman, containerd and kind load.
package image

import (
	"archive/tar"
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// Image is what an image holds and how it is run.
type Image struct {
	// Tag is its full name, such as example.test/program:v1.
	Tag string
	// Files of the machine, by their paths in the image.
	Files map[string]string
	// Entrypoint and User as in a Dockerfile.
	Entrypoint []string
	User       string
}

// Programs is an image of programs, which are found in PATH there. The first is what it runs.
func Programs(tag string, files ...string) Image {
	img := Image{Tag: tag, Files: map[string]string{}}
	for _, file := range files {
		in := path.Join("/usr/local/bin", filepath.Base(file))
		img.Files[in] = file
		if img.Entrypoint == nil {
			img.Entrypoint = []string{in}
		}
	}
	return img
}

// FromDockerfile is the image that a Dockerfile from scratch describes. Of its instructions ARG, COPY (one file), USER and
// ENTRYPOINT are known; args replace the defaults of its arguments.
func FromDockerfile(file, tag string, args map[string]string) (Image, error) {
	img := Image{Tag: tag, Files: map[string]string{}}
	text, err := os.ReadFile(file)
	if err != nil {
		return img, err
	}
	values := map[string]string{}
	for n, line := range strings.Split(string(text), "\n") {
		line = os.Expand(line, func(name string) string { return values[name] })
		instruction, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		words := strings.Fields(rest)
		switch {
		case instruction == "" || strings.HasPrefix(instruction, "#") || line == "FROM scratch":
		case instruction == "ARG" && len(words) == 1:
			name, value, _ := strings.Cut(words[0], "=")
			if given, ok := args[name]; ok {
				value = given
			}
			values[name] = value
		case instruction == "COPY" && len(words) == 2:
			img.Files[words[1]] = filepath.Join(filepath.Dir(file), words[0])
		case instruction == "USER" && len(words) == 1:
			img.User = words[0]
		case instruction == "ENTRYPOINT" && json.Unmarshal([]byte(rest), &img.Entrypoint) == nil:
		default:
			return img, fmt.Errorf("%s:%d: %q is not known here", file, n+1, line)
		}
	}
	return img, nil
}

// Save writes the image's archive to file.
func (i Image) Save(file string) (err error) {
	layer, digest, err := i.layer(filepath.Dir(file))
	if err != nil {
		return fmt.Errorf("image %s: %w", i.Tag, err)
	}
	defer func() { err = errors.Join(err, layer.Close(), os.Remove(layer.Name())) }()
	config, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH,
		"os":           "linux",
		"config":       map[string]any{"Entrypoint": i.Entrypoint, "User": i.User, "Env": []string{"PATH=/usr/local/bin"}},
		"rootfs":       map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + digest}},
	})
	if err != nil {
		return err
	}
	manifest, err := json.Marshal([]map[string]any{{"Config": "config.json", "RepoTags": []string{i.Tag}, "Layers": []string{"layer.tar"}}})
	if err != nil {
		return err
	}
	out, err := os.Create(file)
	if err != nil {
		return err
	}
	defer out.Close()
	size, err := layer.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	w := tar.NewWriter(out)
	for _, f := range []struct {
		name string
		size int64
		data io.Reader
	}{
		{"config.json", int64(len(config)), strings.NewReader(string(config))},
		{"layer.tar", size, io.NewSectionReader(layer, 0, size)},
		{"manifest.json", int64(len(manifest)), strings.NewReader(string(manifest))},
	} {
		if err := add(w, f.name, 0o644, f.size, f.data); err != nil {
			return err
		}
	}
	return errors.Join(w.Close(), out.Close())
}

// layer writes the files to a temporary file in dir, and gives its SHA-256. The same files give the same bytes.
func (i Image) layer(dir string) (_ *os.File, digest string, err error) {
	tmp, err := os.CreateTemp(dir, "layer")
	if err != nil {
		return nil, "", err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, tmp.Close(), os.Remove(tmp.Name()))
		}
	}()
	sum := sha256.New()
	buffered := bufio.NewWriterSize(io.MultiWriter(tmp, sum), 1<<20)
	w := tar.NewWriter(buffered)
	var names []string
	for name := range i.Files {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		if err := addFile(w, strings.TrimPrefix(name, "/"), i.Files[name]); err != nil {
			return nil, "", err
		}
	}
	err = errors.Join(w.Close(), buffered.Flush())
	return tmp, hex.EncodeToString(sum.Sum(nil)), err
}

func addFile(w *tar.Writer, name, file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	return add(w, name, int64(info.Mode().Perm()), info.Size(), f)
}

func add(w *tar.Writer, name string, mode, size int64, data io.Reader) error {
	if err := w.WriteHeader(&tar.Header{Name: name, Mode: mode, Size: size, Format: tar.FormatPAX}); err != nil {
		return err
	}
	_, err := io.Copy(w, data)
	return err
}
