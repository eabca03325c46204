package emulator

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"

	"etcdsnapshot.dev/ci/parts"
)

// AzuritePart names the part with Azurite, Microsoft's emulator of Azure Storage. It knows shared keys, SAS, leases
// and conditional writes, and takes any token that looks like one of Entra ID's. It knows no versions, no soft delete,
// no immutability policies and no encryption scopes.
const AzuritePart = "azurite"

// AzuriteConfig is what an Azurite needs.
type AzuriteConfig struct {
	// Binary is the azurite-blob program.
	Binary string
	// Dir is an empty folder for all that the server keeps. It is the caller's to remove.
	Dir string
	// TLS serves https with a certificate that is signed by nobody else (Azurite.CA), which is also what it takes to
	// accept tokens.
	TLS bool
}

// Azurite is one server of Azure Blob Storage.
type Azurite struct {
	// Endpoint is the server's URL, without an account.
	Endpoint string
	// ServiceURL is the URL of the blob service of Account.
	ServiceURL string
	// Account and Key are the one account that the server has.
	Account, Key string
	// CA is the certificate (PEM) to trust when the server speaks https.
	CA []byte

	config AzuriteConfig
	port   int
	proc   process

	mu         sync.Mutex
	containers int
}

// StartAzurite starts a server for a test, which it ends with; the program and the folder of config are filled in. A
// test that needs one is skipped where there is no Node.js, except in CI, where it fails.
func StartAzurite(tb testing.TB, config AzuriteConfig) *Azurite {
	tb.Helper()
	bin, err := parts.Dir(tb.Context(), AzuritePart)
	if errors.Is(err, parts.ErrNoNode) && os.Getenv("CI") != "true" {
		tb.Skipf("Azure Blob Storage is not tested: %v", err)
	}
	if err != nil {
		tb.Fatal(err)
	}
	config.Binary, config.Dir = filepath.Join(bin, "azurite-blob"), tb.TempDir()
	a, err := RunAzurite(tb.Context(), config)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := a.Stop(); err != nil {
			tb.Errorf("stop %s: %v", AzuritePart, err)
		}
	})
	return a
}

// RunAzurite starts a server and waits until it answers. ctx bounds the start alone.
func RunAzurite(ctx context.Context, config AzuriteConfig) (*Azurite, error) {
	a := &Azurite{
		Account: "devstoreaccount1",
		Key:     base64.StdEncoding.EncodeToString([]byte("the account key of an emulator that holds nothing but test data")),
		config:  config,
		proc:    process{name: AzuritePart},
	}
	if err := os.MkdirAll(filepath.Join(config.Dir, "data"), 0o700); err != nil {
		return nil, err
	}
	if config.TLS {
		if err := a.writeCertificate(); err != nil {
			return nil, err
		}
	}
	scheme := "http"
	if config.TLS {
		scheme = "https"
	}
	err := onFreePort(func(port int) error {
		a.port, a.Endpoint = port, fmt.Sprintf("%s://127.0.0.1:%d", scheme, port)
		a.ServiceURL = a.Endpoint + "/" + a.Account
		return a.Start(ctx)
	})
	if err != nil {
		return nil, err
	}
	return a, nil
}

func (a *Azurite) file(name string) string { return filepath.Join(a.config.Dir, name) }

func (a *Azurite) writeCertificate() error {
	cert, ca, err := selfSigned()
	if err != nil {
		return err
	}
	key, err := x509.MarshalPKCS8PrivateKey(cert.PrivateKey)
	if err != nil {
		return err
	}
	a.CA = ca
	return errors.Join(
		os.WriteFile(a.file("tls.crt"), ca, 0o600),
		os.WriteFile(a.file("tls.key"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}), 0o600))
}

// Start starts the server again where it was, after Stop or Kill. What it was told in the seconds before Kill may be
// lost.
func (a *Azurite) Start(ctx context.Context) error {
	cmd := exec.Command(a.config.Binary, "--blobHost", "127.0.0.1", "--blobPort", fmt.Sprint(a.port), "--location", a.file("data"),
		"--skipApiVersionCheck", "--disableProductStyleUrl", "--disableTelemetry", "--silent")
	if a.config.TLS {
		cmd.Args = append(cmd.Args, "--cert", a.file("tls.crt"), "--key", a.file("tls.key"), "--oauth", "basic")
	}
	// What the user has set for a server of his own must not reach this one.
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "AZURITE_") && !strings.HasPrefix(kv, "NODE_") {
			cmd.Env = append(cmd.Env, kv)
		}
	}
	cmd.Env = append(cmd.Env, "AZURITE_ACCOUNTS="+a.Account+":"+a.Key)
	ready := answers(a.Endpoint)
	if a.config.TLS {
		ready = a.handshakes
	}
	return a.proc.start(ctx, cmd, a.config.Dir, ready)
}

// handshakes tells whether the server speaks TLS.
func (a *Azurite) handshakes(ctx context.Context) error {
	d := tls.Dialer{Config: &tls.Config{RootCAs: a.roots(), MinVersion: tls.VersionTLS12}}
	c, err := d.DialContext(ctx, "tcp", net.JoinHostPort("127.0.0.1", fmt.Sprint(a.port)))
	if err != nil {
		return err
	}
	return c.Close()
}

// Stop ends the server.
func (a *Azurite) Stop() error { return a.proc.stop() }

// Kill ends the server as a crash would.
func (a *Azurite) Kill() error { return a.proc.kill() }

// NewContainer makes a container with a name that this server has not had yet.
func (a *Azurite) NewContainer(ctx context.Context) (name string, err error) {
	a.mu.Lock()
	a.containers++
	name = fmt.Sprintf("container-%d", a.containers)
	a.mu.Unlock()
	c, closeIdle, err := a.Client(name)
	if err != nil {
		return "", err
	}
	defer closeIdle()
	if _, err := c.Create(ctx, nil); err != nil {
		return "", fmt.Errorf("make container %s: %w", name, err)
	}
	return name, nil
}

// Client is the account owner's client of a container, to look behind the back of the code under test. closeIdle
// closes the connections it kept.
func (a *Azurite) Client(name string) (c *container.Client, closeIdle func(), err error) {
	cred, err := container.NewSharedKeyCredential(a.Account, a.Key)
	if err != nil {
		return nil, nil, err
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = &tls.Config{RootCAs: a.roots(), MinVersion: tls.VersionTLS12}
	o := &container.ClientOptions{}
	o.Transport = &http.Client{Transport: transport}
	c, err = container.NewClientWithSharedKeyCredential(a.ServiceURL+"/"+name, cred, o)
	return c, transport.CloseIdleConnections, err
}

func (a *Azurite) roots() *x509.CertPool {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(a.CA)
	return roots
}
