package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const mit = `MIT License

Copyright (c) 2026 Somebody

Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated documentation files (the "Software"), to deal in the Software without restriction, including without limitation the rights to use, copy, modify, merge, publish, distribute, sublicense, and/or sell copies of the Software, and to permit persons to whom the Software is furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all copies or substantial portions of the Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
`

const gpl = `This program is free software: you can redistribute it and/or modify it under the terms of the GNU General Public License as published by the Free Software Foundation, either version 3 of the License, or (at your option) any later version.

This program is distributed in the hope that it will be useful, but WITHOUT ANY WARRANTY; without even the implied warranty of MERCHANTABILITY or FITNESS FOR A PARTICULAR PURPOSE. See the GNU General Public License for more details.
`

func TestRead(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		want  string // the licences, or a part of the error after "error: "
	}{
		"one":                         {map[string]string{"LICENSE": mit}, "MIT"},
		"with a notice":               {map[string]string{"LICENSE.md": mit, "NOTICE": "Somebody made this."}, "MIT"},
		"none":                        {map[string]string{"README.md": mit}, "error: has no file"},
		"one that is not allowed":     {map[string]string{"COPYING": gpl}, "error: COPYING is GPL-3.0"},
		"not allowed in part":         {map[string]string{"LICENSE": mit + "\n" + gpl}, "error: LICENSE is GPL-3.0"},
		"not allowed below":           {map[string]string{"LICENSE": mit, "used/LICENSE": gpl}, "error: used/LICENSE is GPL-3.0"},
		"not allowed where not used":  {map[string]string{"LICENSE": mit, "unused/LICENSE": gpl}, "MIT"},
		"a text that nobody knows":    {map[string]string{"LICENSE": "You may use this on Tuesdays."}, "error: LICENSE: only 0 %"},
		"conditions that are added":   {map[string]string{"LICENSE": mit + strings.Repeat("You may use this on Tuesdays. ", 20)}, "error: LICENSE: only"},
		"a source file by that name":  {map[string]string{"LICENSE": mit, "license.go": "package used"}, "MIT"},
		"nothing but a patents grant": {map[string]string{"PATENTS": "None."}, "error: has no file"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for _, sub := range []string{"used", "unused"} {
				if err := os.Mkdir(filepath.Join(dir, sub), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			for path, text := range c.files {
				if err := os.WriteFile(filepath.Join(dir, path), []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			m := &module{path: "example.test/m", dir: dir, packages: []string{dir, filepath.Join(dir, "used")}}
			ids, err := m.read()
			got := strings.Join(ids, ",")
			if err != nil {
				got = "error: " + err.Error()
			}
			if got != c.want && !(err != nil && strings.HasPrefix(c.want, "error: ") && strings.HasPrefix(got, c.want)) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}
