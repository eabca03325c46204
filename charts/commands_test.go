package charts

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Every `helm install` in the documents installs.
func TestDocumentedInstallCommands(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../docs/distributions/*.md")
	require.NoError(t, err)
	files = append(files, filepath.Join(chartDir, "README.md"), "../README.md")
	command := regexp.MustCompile(`(?m)^helm install (\S+) charts/etcd-snapshot (.*)$`)
	flag := regexp.MustCompile(`^-{1,2}(namespace|n|set|values)[ =]('[^']*'|\S+)\s*`)
	tried := map[string]bool{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, m := range command.FindAllStringSubmatch(strings.ReplaceAll(string(text), "\\\n", " "), -1) {
			r := rendering{release: m[1]}
			rest, _, _ := strings.Cut(m[2], " #")
			for rest = strings.TrimSpace(rest); rest != ""; rest = strings.TrimSpace(rest) {
				f := flag.FindStringSubmatch(rest)
				require.NotNil(t, f, "%s: what is %q?", file, rest)
				rest = rest[len(f[0]):]
				switch value := strings.Trim(f[2], "'"); f[1] {
				case "namespace", "n":
					r.namespace = value
				case "set":
					r.set = append(r.set, value)
				default:
					require.Fail(t, "the test does not know this file", value)
				}
			}
			render(t, r)
			for _, s := range r.set {
				tried[s] = true
			}
		}
	}
	for name := range readPresets(t).Distributions {
		if name != "kubeadm" && name != "rke2" { // by default, and in a remark
			require.True(t, tried["distribution="+name], "no document shows how to install on %s", name)
		}
	}
}
