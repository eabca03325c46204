// Package secrets searches what a program said for the secrets that it was given. Tests note both as they go: Keep and
// KeepOf take secrets, Said what was printed, stored or written into an object, wherever a person or a machine may read
// it. In the end Leaks compares all with all, so that a secret is also found in what another test printed.
package secrets

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Least is the length from which a value is a secret, in bytes: a shorter one would be found by chance.
const Least = 8

// Search holds the secrets and what was said. Its zero value is ready; it may be used by several goroutines.
type Search struct {
	mu   sync.Mutex
	kept map[string]string // value to name
	said []saying
}

type saying struct{ place, text string }

// Leak is a secret that was found where it must not be.
type Leak struct {
	// Secret is its name, Form how it was written: plain, base64, hex, ...
	Secret, Form string
	// Place is where, Excerpt the text around it, without the value.
	Place, Excerpt string
}

func (l Leak) String() string {
	return fmt.Sprintf("the secret %q is (%s) in %s: %s", l.Secret, l.Form, l.Place, l.Excerpt)
}

// Keep notes a secret. A text of several lines, such as a key in PEM, is one secret a line. What is shorter than Least is
// not searched for.
func (s *Search) Keep(name, value string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.kept == nil {
		s.kept = map[string]string{}
	}
	for line := range strings.Lines(value) {
		line = strings.TrimSpace(line)
		if _, known := s.kept[line]; known || len(line) < Least || strings.HasPrefix(line, "-----") || strings.HasPrefix(line, "#") {
			continue
		}
		s.kept[line] = name
	}
}

// Said notes what was said in a place: a log, a message, an object, a command line.
func (s *Search) Said(place, text string) {
	if text == "" {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.said = append(s.said, saying{place, text})
}

// Folder notes the names of all files in a folder that is somebody else's to read, and the text of those that keep says.
func (s *Search) Folder(place, dir string, keep func(name string) bool) error {
	return filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			if os.IsNotExist(err) {
				return nil
			}
			return err
		}
		name, _ := filepath.Rel(dir, path)
		s.Said(place+", a file's name", name)
		if d.Type().IsRegular() && keep(name) {
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			s.Said(place+", "+name, string(text))
		}
		return nil
	})
}

// Recorder copies what a process of its own says into a file of dir, which is there also when the process is killed. It is for a test binary that was started as the program.
func Recorder(dir, name string, args []string, stdout, stderr io.Writer) (io.Writer, io.Writer, error) {
	f, err := os.CreateTemp(dir, name+"-*.txt")
	if err != nil {
		return nil, nil, err
	}
	if _, err := fmt.Fprintln(f, strings.Join(args, " ")); err != nil {
		return nil, nil, err
	}
	return io.MultiWriter(stdout, f), io.MultiWriter(stderr, f), nil
}

// Leaks gives every secret that was said, each once a place.
func (s *Search) Leaks() (leaks []Leak) {
	s.mu.Lock()
	defer s.mu.Unlock()
	forms := s.index()
	for _, said := range s.said {
		leaks = append(leaks, forms.find(said)...)
	}
	return leaks
}

// Report tells of the leaks, and how much was searched. It gives the code to exit with, which is code if there are none.
func (s *Search) Report(w io.Writer, code int) int {
	leaks := s.Leaks()
	for _, l := range leaks {
		fmt.Fprintln(w, "LEAK:", l)
		code = max(code, 1)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintf(w, "secrets: searched for %d in %d places, and found %d leaks\n", len(s.kept), len(s.said), len(leaks))
	return code
}

// form is one way to write a secret.
type form struct{ secret, kind, text string }

// index finds forms by their first Least bytes: there are thousands of them, and each text is read once.
type index map[string][]form

func (s *Search) index() index {
	all := index{}
	for value, name := range s.kept {
		for _, f := range formsOf(name, value) {
			all[f.text[:Least]] = append(all[f.text[:Least]], f)
		}
	}
	return all
}

func (all index) find(said saying) (leaks []Leak) {
	var found []string
	for at := 0; at+Least <= len(said.text); at++ {
		for _, f := range all[said.text[at:at+Least]] {
			if !strings.HasPrefix(said.text[at:], f.text) || slices.Contains(found, f.secret) {
				continue
			}
			found = append(found, f.secret)
			before, after := said.text[max(0, at-60):at], said.text[at+len(f.text):min(len(said.text), at+len(f.text)+30)]
			leaks = append(leaks, Leak{f.secret, f.kind, said.place, strconv.Quote(all.mask(before) + "***" + all.mask(after))})
		}
	}
	return leaks
}

// mask hides what else is secret in an excerpt.
func (all index) mask(text string) string {
	for at := 0; at+Least <= len(text); at++ {
		for _, f := range all[text[at:at+Least]] {
			// The excerpt may end in the middle of a secret.
			if rest := text[at:]; strings.HasPrefix(rest, f.text) || strings.HasPrefix(f.text, rest) {
				return text[:at] + "***"
			}
		}
	}
	return text
}

// formsOf are the ways in which programs write a value that they do not mean to print.
func formsOf(name, value string) (forms []form) {
	add := func(kind, text string) {
		if len(text) >= Least && !slices.ContainsFunc(forms, func(f form) bool { return f.text == text }) {
			forms = append(forms, form{name, kind, text})
		}
	}
	encoded := func(kind, raw string) {
		add(kind+"hex", hex.EncodeToString([]byte(raw)))
		add(kind+"hex", strings.ToUpper(hex.EncodeToString([]byte(raw))))
		// In the middle of something that is encoded, such as user:password, it begins at any of three places; the
		// characters that also depend on its neighbours are left off.
		for skip := range 3 {
			padded := append(make([]byte, skip), raw...)
			whole := padded[:len(padded)/3*3]
			text := base64.StdEncoding.EncodeToString(whole)
			text = text[min(len(text), []int{0, 2, 3}[skip]):]
			add(kind+"base64", text)
			add(kind+"base64", strings.NewReplacer("+", "-", "/", "_").Replace(text))
		}
	}
	add("plain", value)
	add("URL-escaped", url.QueryEscape(value))
	add("URL-escaped", url.PathEscape(value))
	quoted, _ := json.Marshal(value) // a string always has a JSON form
	add("JSON", strings.Trim(string(quoted), `"`))
	add("quoted", strings.Trim(strconv.Quote(value), `"`))
	encoded("", value)
	// A key that is kept in base64 is used without.
	if raw, err := base64.StdEncoding.DecodeString(value); err == nil && len(raw) >= 2*Least {
		add("decoded", string(raw))
		add("decoded bytes", strings.Trim(fmt.Sprintf("%d", raw), "[]"))
		encoded("decoded, ", string(raw))
	}
	return forms
}
