package docs

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcdsnapshot.dev/agent/cli"
)

const root = "../.."

func all(t *testing.T) []Page {
	t.Helper()
	p, err := Pages(root)
	require.NoError(t, err)
	require.Greater(t, len(p), 30)
	return p
}

// Every link within the repository leads to a file that is there, and to a heading in it.
func TestLinks(t *testing.T) {
	t.Parallel()
	found := all(t)
	anchors := map[string][]string{}
	for _, p := range found {
		for _, h := range p.headings {
			anchors[p.File] = append(anchors[p.File], h.anchor)
		}
	}
	for _, p := range found {
		for _, l := range p.links {
			if strings.Contains(l.target, "://") || strings.HasPrefix(l.target, "mailto:") {
				continue
			}
			at := fmt.Sprintf("%s:%d: link to %s", p.File, l.line, l.target)
			target, anchor, _ := strings.Cut(l.target, "#")
			file := p.File
			if target != "" {
				file = filepath.Join(filepath.Dir(p.File), target)
				_, err := os.Stat(filepath.Join(root, file))
				assert.NoError(t, err, at)
			}
			if anchor != "" && filepath.Ext(file) == ".md" {
				assert.Contains(t, anchors[file], anchor, at)
			}
		}
	}
}

// Every page of docs/ can be reached from the README by links.
func TestEveryPageIsLinked(t *testing.T) {
	t.Parallel()
	links := map[string][]string{}
	for _, p := range all(t) {
		for _, l := range p.links {
			target, _, _ := strings.Cut(l.target, "#")
			links[p.File] = append(links[p.File], filepath.Join(filepath.Dir(p.File), target))
		}
	}
	reached := map[string]bool{}
	var visit func(file string)
	visit = func(file string) {
		if reached[file] {
			return
		}
		reached[file] = true
		for _, to := range links[file] {
			if fi, err := os.Stat(filepath.Join(root, to)); err == nil && fi.IsDir() {
				to = filepath.Join(to, "README.md")
			}
			visit(to)
		}
	}
	visit("README.md")
	for _, p := range all(t) {
		if strings.HasPrefix(p.File, "docs/") || p.File == "CONTRIBUTING.md" {
			assert.True(t, reached[p.File], "no link leads from README.md to %s", p.File)
		}
	}
}

// Every command of the agent in a document is one that it takes: the verb is there, and its flags.
func TestAgentCommands(t *testing.T) {
	t.Parallel()
	n := 0
	for _, p := range all(t) {
		for _, b := range p.Blocks {
			if b.Language != "sh" && b.Language != "console" {
				continue
			}
			for _, command := range agentCommands(b) {
				n++
				assert.NoError(t, accepts(command), "%s:%d: etcd-snapshot-agent %s", p.File, b.Line, strings.Join(command, " "))
			}
		}
	}
	require.Greater(t, n, 20)
}

var (
	// wordPattern is a word of a shell's command: quoted parts and others.
	wordPattern = regexp.MustCompile(`(?:'[^']*'|"[^"]*"|[^\s'"])+`)
	// endPattern is what a command ends with, in a word of its own or at a word's end.
	endPattern = regexp.MustCompile(`(\|\|?|&&|;|[0-9]?>.*)$`)
)

// agentCommands gives the arguments of each command of the agent in a block. In a console's block only what is behind a
// prompt is a command.
func agentCommands(b Block) (found [][]string) {
	for line := range strings.SplitSeq(strings.ReplaceAll(b.Text, "\\\n", " "), "\n") {
		typed, prompt := strings.CutPrefix(line, "$ ")
		if b.Language == "console" && !prompt {
			continue
		}
		var command []string // nil where it is not the agent's
		first := ""
		for _, word := range append(wordPattern.FindAllString(withoutRemarks(typed), -1), ";") {
			plain := endPattern.ReplaceAllString(word, "")
			switch {
			case command != nil && plain != "":
				command = append(command, strings.Trim(plain, `'"`))
			case filepath.Base(word) == "etcd-snapshot-agent" && !strings.Contains(word, ":") && first != "cp":
				command = []string{}
			}
			if first == "" {
				first = plain
			}
			if plain == word {
				continue
			}
			if command != nil {
				found, command = append(found, command), nil
			}
			first = ""
		}
	}
	return found
}

// accepts parses a command with the agent's own flags.
func accepts(args []string) error {
	command, rest, err := cli.NewCommand().Find(args)
	if err != nil {
		return err
	}
	if err := command.ParseFlags(rest); err != nil && err != pflag.ErrHelp {
		return err
	}
	if !command.HasParent() && len(rest) > 0 && !strings.HasPrefix(rest[0], "-") {
		return fmt.Errorf("there is no verb %s", rest[0])
	}
	return command.ValidateArgs(command.Flags().Args())
}

// Every block of commands says in a comment before it which test runs it, or why none does:
//
//	<!-- run by TestDemo -->
//	<!-- not run: it needs a cloud account -->
func TestCommandBlocksAreAccountedFor(t *testing.T) {
	t.Parallel()
	tests := testNames(t)
	for _, p := range all(t) {
		for _, b := range p.Blocks {
			if b.Language != "sh" {
				continue
			}
			at := fmt.Sprintf("%s:%d", p.File, b.Line)
			why, notRun := strings.CutPrefix(b.before, "not run: ")
			switch {
			case b.RunBy() != nil:
				for _, name := range b.RunBy() {
					assert.True(t, tests[name], "%s: there is no test or target %s", at, name)
				}
			case notRun:
				assert.NotEmpty(t, why, at)
			default:
				assert.Fail(t, "a block of commands does not say what runs it", "%s: write <!-- run by TestName --> or <!-- not run: why --> on the line before", at)
			}
		}
	}
}

// testNames are the tests of the repository, and the Makefile's targets as "make name".
func testNames(t *testing.T) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	function := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, m := range function.FindAllStringSubmatch(string(text), -1) {
			names[m[1]] = true
		}
		return err
	}))
	text, err := os.ReadFile(filepath.Join(root, "Makefile"))
	require.NoError(t, err)
	for _, m := range regexp.MustCompile(`(?m)^([a-z0-9-]+):.*## `).FindAllStringSubmatch(string(text), -1) {
		names["make "+m[1]] = true
	}
	return names
}

// A translated page has the same headings, paragraphs, lists and tables as the one that it translates, the same links, and
// the very same commands; only what is behind a # in them is translated.
func TestTranslationsAreInStep(t *testing.T) {
	t.Parallel()
	byFile := map[string]Page{}
	for _, p := range all(t) {
		byFile[p.File] = p
	}
	n := 0
	for file, p := range byFile {
		original, translated := strings.CutSuffix(file, ".zh-CN.md")
		if !translated {
			continue
		}
		n++
		of, ok := byFile[original+".md"]
		if !assert.True(t, ok, "%s translates nothing", file) {
			continue
		}
		assert.Equal(t, of.shape, p.shape, "%s: it has other headings, paragraphs, lists or tables than %s", file, of.File)
		assert.Equal(t, targets(of), targets(p), "%s: it has other links than %s", file, of.File)
		if assert.Len(t, p.Blocks, len(of.Blocks), file) {
			for i, b := range p.Blocks {
				assert.Equal(t, withoutRemarks(of.Blocks[i].Text), withoutRemarks(b.Text), "%s:%d: another block than %s:%d", file, b.Line, of.File, of.Blocks[i].Line)
			}
		}
	}
	require.Positive(t, n)
}

func targets(p Page) (list []string) {
	for _, l := range p.links {
		if !strings.HasSuffix(l.target, "README.md") && !strings.HasSuffix(l.target, ".zh-CN.md") {
			target, _, _ := strings.Cut(l.target, "#")
			list = append(list, target)
		}
	}
	slices.Sort(list)
	return list
}

var remarkPattern = regexp.MustCompile(`(?m)(\s+#|^#) .*$|^([a-z<].*\S)\s{3,}\S.*$`)

func withoutRemarks(text string) string { return remarkPattern.ReplaceAllString(text, "$2") }
