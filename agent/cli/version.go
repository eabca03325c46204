package cli

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"

	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/agent/destination"
	"etcdsnapshot.dev/agent/etcd"
)

// Set by the linker: -X etcdsnapshot.dev/agent/cli.version=1.2.3.
var version, commit string

// VersionInfo says what this program is and what it can read and write.
type VersionInfo struct {
	Version     string   `json:"version"`
	Commit      string   `json:"commit,omitempty"`
	Go          string   `json:"go"`
	Platform    string   `json:"platform"`
	APIVersion  string   `json:"apiVersion"`
	Manifest    int      `json:"manifestSchemaVersion"`
	Compression []string `json:"compression"`
	Encryption  []string `json:"encryption"`
	Backends    []string `json:"backends"`
	Etcd        string   `json:"etcd"`
}

func newVersion(e *env) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version, the commit, and the formats this program knows",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if err := checkOutput(output, "table", "json"); err != nil {
				return err
			}
			v := Version()
			if output == "json" {
				return printJSON(e.stdout, v)
			}
			fmt.Fprintf(e.stdout, "etcd-snapshot-agent %s", v.Version)
			if v.Commit != "" {
				fmt.Fprintf(e.stdout, " (commit %s)", v.Commit)
			}
			_, err := fmt.Fprintf(e.stdout, ", %s, %s\n", v.Go, v.Platform)
			t := newTable(e.stdout, "READS AND WRITES", "")
			t.row("API", v.APIVersion)
			t.row("manifest", v.Manifest)
			t.row("compression", list(v.Compression))
			t.row("encryption", list(v.Encryption))
			t.row("destinations", list(v.Backends))
			t.row("etcd", v.Etcd)
			if ferr := t.flush(); err == nil {
				err = ferr
			}
			return err
		},
	}
	outputFlag(cmd, &output)
	return cmd
}

// Version gives this program's version: from the linker, or from what the go command recorded.
func Version() VersionInfo {
	v := VersionInfo{
		Version: version, Commit: commit, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH,
		APIVersion: v1.GroupVersion.String(), Manifest: v1.ManifestSchemaVersion,
		Compression: []string{v1.CompressionZstd, v1.CompressionGzip, v1.CompressionNone},
		Encryption:  []string{"age"}, Backends: destination.Backends(), Etcd: list(etcd.SupportedVersions),
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	if v.Version == "" {
		v.Version = info.Main.Version
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && v.Commit == "" {
			v.Commit = s.Value
		}
	}
	return v
}

func list(words []string) string { return strings.Join(words, ", ") }
