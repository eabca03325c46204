package etcd

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

func TestParseEndpoint(t *testing.T) {
	for endpoint, want := range map[string]address{
		"https://127.0.0.1:2379":        {network: "tcp", addr: "127.0.0.1:2379", secure: true, serverName: "127.0.0.1", authority: "127.0.0.1:2379"},
		"http://etcd-0.example.test:1/": {network: "tcp", addr: "etcd-0.example.test:1", serverName: "etcd-0.example.test", authority: "etcd-0.example.test:1"},
		"https://node":                  {network: "tcp", addr: "node:2379", secure: true, serverName: "node", authority: "node:2379"},
		"https://[::1]:2379":            {network: "tcp", addr: "[::1]:2379", secure: true, serverName: "::1", authority: "[::1]:2379"},
		"https://[fd00::5]":             {network: "tcp", addr: "[fd00::5]:2379", secure: true, serverName: "fd00::5", authority: "[fd00::5]:2379"},
		"https://[fe80::1%25eth0]:2379": {network: "tcp", addr: "[fe80::1%eth0]:2379", secure: true, serverName: "fe80::1", authority: "[fe80::1]:2379"},
		"unix:///run/etcd.sock":         {network: "unix", addr: "/run/etcd.sock", serverName: "etcd.sock", authority: "localhost"},
		"unixs:///run/localhost:2379":   {network: "unix", addr: "/run/localhost:2379", secure: true, serverName: "localhost", authority: "localhost"},
		"unix://localhost:2379":         {network: "unix", addr: "localhost:2379", serverName: "localhost", authority: "localhost"},
		"unix:///run/a%20b?c#d":         {network: "unix", addr: "/run/a%20b?c#d", serverName: "a%20b?c#d", authority: "localhost"},
	} {
		t.Run(endpoint, func(t *testing.T) {
			want.endpoint = endpoint
			got, err := parseEndpoint(endpoint)
			require.NoError(t, err)
			require.Equal(t, want, got)
		})
	}
	for endpoint, phrase := range map[string]string{
		"":                            "a scheme is missing",
		"127.0.0.1:2379":              "write https://127.0.0.1:2379",
		"ftp://127.0.0.1":             `"ftp" is none of`,
		"https://":                    "a host is missing",
		"https://:2379":               "a host is missing",
		"https://host:0":              "between 1 and 65535",
		"https://host:65536":          "between 1 and 65535",
		"https://host:x":              "invalid port",
		"https://host:1/v3":           "only a host and a port",
		"https://host:1?a=b":          "only a host and a port",
		"https://[::1":                "missing ']'",
		"https://[fe80::1%eth0]:2379": "invalid URL escape",
		"https://::1:2379":            "invalid port",
		"unix://":                     "path of a socket is missing",
		"unix:/run/etcd.sock":         "a scheme is missing",
		"unix:///" + strings.Repeat("x", maxSocketPath): "at most 107 bytes",
	} {
		t.Run("bad "+endpoint, func(t *testing.T) {
			_, err := New(Config{Endpoints: []string{endpoint}})
			var config *ConfigError
			require.ErrorAs(t, err, &config)
			require.Equal(t, "spec.etcd.endpoints", config.Field)
			require.ErrorContains(t, err, phrase)
		})
	}
	_, err := New(Config{Endpoints: []string{"https://root:secret@host:1"}})
	require.ErrorContains(t, err, "use a client certificate")
	require.NotContains(t, err.Error(), "secret")
	_, err = New(Config{})
	require.ErrorContains(t, err, "at least one endpoint")
}

// TestTap feeds a snapshot in pieces of any size.
func TestTap(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	database := make([]byte, 2048)
	for i := range database {
		database[i] = byte(rnd.Uint32())
	}
	sum := sha256.Sum256(database)
	whole := append(bytes.Clone(database), sum[:]...)
	feed := func(data []byte, longest int) (Database, []byte, error) {
		var got bytes.Buffer
		tp := &tap{w: &got, hash: sha256.New()}
		for len(data) > 0 {
			n := min(len(data), 1+rnd.IntN(longest))
			_, err := tp.Write(data[:n])
			require.NoError(t, err)
			data = data[n:]
		}
		db, err := tp.finish("3.6.0")
		return db, got.Bytes(), err
	}
	for _, longest := range []int{1, 7, 31, 32, 33, 64, 500, 10_000} {
		for range 4 {
			db, got, err := feed(whole, longest)
			require.NoError(t, err)
			require.Equal(t, whole, got)
			require.Equal(t, Database{Size: int64(len(whole)), SHA256: sha256.Sum256(whole), Version: "3.6.0"}, db)

			for _, at := range []int{0, len(database) - 1, len(database), len(whole) - 1} {
				flipped := bytes.Clone(whole)
				flipped[at] ^= 1
				_, _, err := feed(flipped, longest)
				require.ErrorIs(t, err, ErrTrailerMismatch)
			}
			_, _, err = feed(database, longest)
			require.ErrorIs(t, err, ErrTrailerMissing)
			_, _, err = feed(whole[:len(whole)-1], longest)
			require.ErrorIs(t, err, ErrTrailerMissing)
			_, _, err = feed(whole[512:], longest) // the size alone does not tell
			require.ErrorIs(t, err, ErrTrailerMismatch)
		}
	}
}

type failingWriter struct{ after int }

func (w *failingWriter) Write(p []byte) (int, error) {
	n := min(w.after, len(p))
	w.after -= n
	if n < len(p) {
		return n, errors.New("disk full")
	}
	return n, nil
}

func TestTapGivesTheWritersError(t *testing.T) {
	tp := &tap{w: &failingWriter{after: 100}, hash: sha256.New()}
	_, err := tp.Write(make([]byte, 60))
	require.NoError(t, err)
	_, err = tp.Write(make([]byte, 60))
	require.EqualError(t, err, "disk full")
	require.EqualValues(t, 100, tp.size)
}

func TestAlarms(t *testing.T) {
	// The text is etcd's own, and protobuf libraries differ in their blanks.
	status := &pb.StatusResponse{Errors: []string{
		"etcdserver: no leader", "memberID:10276657743932975437 alarm:CORRUPT ", "memberID:7  alarm:NOSPACE", "alarm:CORRUPT ",
	}}
	require.Equal(t, map[string][]uint64{"CORRUPT": {10276657743932975437, 0}, "NOSPACE": {7}}, byKind(alarms(status)))
}

func TestBetter(t *testing.T) {
	fresh, stale := Member{RaftAppliedIndex: 9}, Member{RaftAppliedIndex: 8}
	leader, cutOff := Member{RaftAppliedIndex: 10, Leader: true}, Member{RaftAppliedIndex: 10, Leaderless: true}
	sorted := []Member{fresh, stale, leader, cutOff}
	for i := range sorted {
		for j := range sorted {
			require.Equal(t, i-j < 0, better(sorted[i], sorted[j]) < 0, "%d %d", i, j)
		}
	}
}
