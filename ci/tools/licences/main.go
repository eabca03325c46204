// Command licences looks at the licence of all code that is linked into the agent. It fails on a licence that is not
// on its list, on a module without one, and on a text that it cannot tell. With -write it writes all of their texts
// and notices into one file, which is what those licences ask of who passes the binary on.
package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/google/licensecheck"
)

// allowed are the licences (SPDX identifiers) of what may be linked into a program under Apache-2.0. MPL-2.0 binds the
// files that are under it, which are passed on unchanged.
var allowed = []string{
	"0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "BSD-3-Clause-Google", "CC0-1.0", "ISC", "MIT", "MIT-0", "MPL-2.0", "Unlicense",
	"GooglePatentClause", // what Go's own PATENTS adds to BSD-3-Clause
}

// least is the share, in percent, of a licence's file that must be the text of licences. Names of authors and headings
// make up the rest.
const least = 75

// platforms are those of the release: what is linked differs.
var platforms = []string{"linux/amd64", "linux/arm64", "darwin/amd64", "darwin/arm64"}

var (
	licenceFile = regexp.MustCompile(`(?i)^(un)?(licen[cs]e|copying|copyright)([-._].*)?$`)
	noticeFile  = regexp.MustCompile(`(?i)^(notice|patents)([-._].*)?$`)
	sourceFile  = regexp.MustCompile(`(?i)\.(go|s|c|h)$`)
)

func main() {
	write := flag.String("write", "", "file to write the texts to")
	root := flag.String("root", "../../..", "the repository")
	flag.Parse()
	if err := run(*root, *write); err != nil {
		fmt.Fprintln(os.Stderr, "licences:", err)
		os.Exit(1)
	}
}

func run(root, write string) error {
	modules, err := linked(root)
	if err != nil {
		return err
	}
	var (
		errs []error
		out  bytes.Buffer
	)
	out.WriteString("etcd-snapshot-agent contains code of others. Their licences and notices:\n")
	counts := map[string]int{}
	for _, m := range modules {
		ids, err := m.read()
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", m, err))
			continue
		}
		for _, id := range ids {
			counts[id]++
		}
		fmt.Fprintf(&out, "\n%s\n%s\n%s\n", strings.Repeat("=", 80), m, strings.Join(ids, ", "))
		for _, f := range m.files {
			fmt.Fprintf(&out, "\n--- %s\n\n%s\n", f.name, bytes.TrimRight(f.text, "\n"))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if write != "" {
		if err := os.WriteFile(write, out.Bytes(), 0o644); err != nil {
			return err
		}
	}
	var sum []string
	for id, n := range counts {
		sum = append(sum, fmt.Sprintf("%s %d", id, n))
	}
	slices.Sort(sum)
	fmt.Printf("licences: %d modules are linked into the agent: %s\n", len(modules), strings.Join(sum, ", "))
	return nil
}

// module is one module of which packages are linked in.
type module struct {
	path, version, dir string
	// packages are the folders of those packages.
	packages []string
	files    []file
}

type file struct {
	// name is the path in the module.
	name string
	text []byte
}

func (m *module) String() string { return strings.TrimSpace(m.path + " " + m.version) }

// linked asks Go what is in the agent, on all platforms. Go's standard library is a module without a version here: it
// depends on who builds.
func linked(root string) ([]*module, error) {
	all := map[string]*module{}
	for _, p := range platforms {
		goos, goarch, _ := strings.Cut(p, "/")
		cmd := exec.Command("go", "list", "-deps", "-json=Dir,Standard,Module", "./agent")
		cmd.Dir, cmd.Stderr = root, os.Stderr
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+goos, "GOARCH="+goarch)
		out, err := cmd.Output()
		if err != nil {
			return nil, fmt.Errorf("go list for %s: %w", p, err)
		}
		for d := json.NewDecoder(bytes.NewReader(out)); ; {
			var pkg struct {
				Dir      string
				Standard bool
				Module   *struct {
					Path, Version, Dir string
					Main               bool
				}
			}
			if err := d.Decode(&pkg); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				return nil, fmt.Errorf("go list for %s: %w", p, err)
			}
			m := &module{}
			switch {
			case pkg.Standard:
				if m.dir, err = goroot(root); err != nil {
					return nil, err
				}
				m.path, pkg.Dir = "Go's standard library", m.dir
			case pkg.Module == nil:
				return nil, fmt.Errorf("%s belongs to no module", pkg.Dir)
			case pkg.Module.Main:
				continue
			default:
				m.path, m.version, m.dir = pkg.Module.Path, pkg.Module.Version, pkg.Module.Dir
			}
			if known, ok := all[m.path]; ok {
				m = known
			} else {
				all[m.path] = m
			}
			if !slices.Contains(m.packages, pkg.Dir) {
				m.packages = append(m.packages, pkg.Dir)
			}
		}
	}
	var list []*module
	for _, m := range all {
		list = append(list, m)
	}
	slices.SortFunc(list, func(a, b *module) int { return cmp.Compare(a.path, b.path) })
	return list, nil
}

func goroot(dir string) (string, error) {
	cmd := exec.Command("go", "env", "GOROOT")
	cmd.Dir = dir
	out, err := cmd.Output()
	return strings.TrimSpace(string(out)), err
}

// read finds the licences that the module's packages are under: those in its top folder, and in the folders down to each
// package.
func (m *module) read() (ids []string, err error) {
	folders := map[string]bool{}
	for _, dir := range m.packages {
		for ; ; dir = filepath.Dir(dir) {
			folders[dir] = true
			if dir == m.dir || len(dir) <= len(m.dir) {
				break
			}
		}
	}
	for dir := range folders {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			if e.IsDir() || sourceFile.MatchString(e.Name()) || !licenceFile.MatchString(e.Name()) && !noticeFile.MatchString(e.Name()) {
				continue
			}
			f, found, err := m.open(filepath.Join(dir, e.Name()), licenceFile.MatchString(e.Name()))
			if err != nil {
				return nil, err
			}
			m.files = append(m.files, f)
			ids = append(ids, found...)
		}
	}
	if len(ids) == 0 {
		return nil, errors.New("has no file with a licence")
	}
	slices.SortFunc(m.files, func(a, b file) int { return cmp.Compare(a.name, b.name) })
	slices.Sort(ids)
	return slices.Compact(ids), nil
}

// open reads one file. A licence must be one of those allowed, as far as can be told, in all its parts.
func (m *module) open(path string, licence bool) (f file, ids []string, err error) {
	if f.name, err = filepath.Rel(m.dir, path); err != nil {
		return f, nil, err
	}
	if f.text, err = fs.ReadFile(os.DirFS(filepath.Dir(path)), filepath.Base(path)); err != nil || !licence {
		return f, nil, err
	}
	found := licensecheck.Scan(f.text)
	for _, match := range found.Match {
		if !slices.Contains(allowed, match.ID) {
			return f, nil, fmt.Errorf("%s is %s, which is not among %s", f.name, match.ID, strings.Join(allowed, ", "))
		}
		ids = append(ids, match.ID)
	}
	if found.Percent < least {
		return f, nil, fmt.Errorf("%s: only %.0f %% of it is the text of a known licence (%s): read it", f.name, found.Percent, strings.Join(ids, ", "))
	}
	return f, ids, nil
}
