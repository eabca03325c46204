package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Every message on the page of troubleshooting is one that the program says: each part between two … stands in one text of
// its code, in this order, with something to fill in between.
func TestTroubleshootingQuotesTheProgram(t *testing.T) {
	t.Parallel()
	texts := programTexts(t)
	page, err := os.ReadFile(filepath.Join(root, "docs", "troubleshooting.md"))
	require.NoError(t, err)
	quotes := regexp.MustCompile("(?m)^\\| `([^`]+)` \\|").FindAllStringSubmatch(string(page), -1)
	rows := regexp.MustCompile(`(?m)^\| [^-t]`).FindAllString(string(page), -1)
	require.Len(t, quotes, len(rows), "a row without a message")
	require.Greater(t, len(quotes), 40)
	for _, q := range quotes {
		var parts []string
		for _, part := range strings.Split(q[1], "…") {
			parts = append(parts, regexp.QuoteMeta(strings.TrimSpace(part)))
		}
		pattern := regexp.MustCompile(strings.Join(parts, ` ?\S*%\S+.*`))
		assert.True(t, pattern.MatchString(texts), "the program does not say %q", q[1])
	}
}

// programTexts are all texts in the agent's code, one a line: those that are put together with + are one.
func programTexts(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	require.NoError(t, filepath.WalkDir(filepath.Join(root, "agent"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") || strings.Contains(path, "test/") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			e, ok := n.(ast.Expr)
			if !ok {
				return true
			}
			text := textOf(e)
			if text == "" {
				return true
			}
			all.WriteString(strings.ReplaceAll(text, "\n", " ") + "\n")
			return false
		})
		return nil
	}))
	return all.String()
}

func textOf(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		if e.Kind == token.STRING {
			text, err := strconv.Unquote(e.Value)
			if err == nil {
				return text
			}
		}
	case *ast.BinaryExpr:
		if left, right := textOf(e.X), textOf(e.Y); e.Op == token.ADD && left != "" && right != "" {
			return left + right
		}
	}
	return ""
}
