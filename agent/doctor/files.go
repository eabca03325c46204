package doctor

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/agent/etcd"
	"etcdsnapshot.dev/agent/extras"
)

// expirySoon is how far ahead the end of a certificate is warned of.
const expirySoon = 30 * 24 * time.Hour

// file is one that the policy names.
type file struct {
	field, path string
	secret      bool // only its owner may read it
	folder      bool
}

// files are those that the policy names.
func files(spec *v1.EtcdSnapshotPolicySpec) (all []file) {
	add := func(field, path string, secret, folder bool) {
		if path != "" {
			all = append(all, file{field, path, secret, folder})
		}
	}
	add("spec.etcd.caFile", spec.Etcd.CAFile, false, false)
	add("spec.etcd.certFile", spec.Etcd.CertFile, false, false)
	add("spec.etcd.keyFile", spec.Etcd.KeyFile, true, false)
	for _, d := range spec.Destinations {
		at := "spec.destinations[" + d.Name + "]"
		switch {
		case d.GCS != nil:
			add(at+".gcs.caBundleFile", d.GCS.CABundleFile, false, false)
			add(at+".gcs.auth.credentialsFile", d.GCS.Auth.CredentialsFile, true, false)
		case d.Azure != nil:
			add(at+".azure.caBundleFile", d.Azure.CABundleFile, false, false)
			add(at+".azure.auth.credentialsDir", d.Azure.Auth.CredentialsDir, true, true)
		case d.S3 != nil:
			add(at+".s3.caBundleFile", d.S3.CABundleFile, false, false)
			add(at+".s3.auth.credentialsDir", d.S3.Auth.CredentialsDir, true, true)
			if d.S3.ServerSideEncryption != nil {
				add(at+".s3.serverSideEncryption.keyDir", d.S3.ServerSideEncryption.KeyDir, true, true)
			}
		}
	}
	return all
}

func (r *run) checkFiles(context.Context) (found []Finding) {
	for _, f := range files(&r.Request.Policy.Spec) {
		found = append(found, f.check())
		if !f.folder {
			continue
		}
		// A mounted Secret: its keys are links, and what begins with two dots is the kubelet's own.
		entries, _ := os.ReadDir(f.path) // that it cannot be read is found above
		for _, e := range entries {
			if !strings.HasPrefix(e.Name(), "..") {
				if in := (file{f.field, filepath.Join(f.path, e.Name()), f.secret, false}).check(); in.Result != OK {
					found = append(found, in)
				}
			}
		}
	}
	if len(found) == 0 {
		return []Finding{skipped("file", "", "the policy names no file")}
	}
	return found
}

func (f file) check() Finding {
	const name = "file"
	info, err := os.Stat(f.path)
	if err == nil {
		err = readable(f.path)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return failed(name, f.path, configErrorf("%s: there is no such file", f.field),
			"Check the path, and that this is a control-plane node of the distribution that the chart was told.")
	case errors.Is(err, fs.ErrPermission):
		return failed(name, f.path, configErrorf("%s: it may not be read as uid %d: %w", f.field, os.Geteuid(), err),
			"Run as the owner or as root (with the capability DAC_READ_SEARCH where it is another user's), or look for SELinux.")
	case err != nil:
		return failed(name, f.path, fmt.Errorf("%s: %w", f.field, err), "Check the disk and the mount.")
	case info.IsDir() != f.folder:
		return failed(name, f.path, configErrorf("%s: it is %s", f.field, kindOf(info)), "Name a "+map[bool]string{true: "folder", false: "file"}[f.folder]+". The kubelet makes a folder where a file to mount is missing.")
	}
	owner := ""
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		owner = fmt.Sprintf(", owner uid %d", st.Uid)
	}
	mode := info.Mode().Perm()
	about := fmt.Sprintf("%s: readable, mode %04o%s", f.field, mode, owner)
	switch {
	case mode&0o002 != 0 && info.Mode()&fs.ModeSticky == 0:
		return warned(name, f.path, "chmod o-w "+f.path, "%s: every user of this machine may change it", about)
	case f.secret && !f.folder && mode&0o004 != 0:
		return warned(name, f.path, "chmod 600 "+f.path, "%s: every user of this machine may read this key", about)
	}
	return ok(name, f.path, "%s", about)
}

func kindOf(info fs.FileInfo) string {
	if info.IsDir() {
		return "a folder"
	}
	return "no folder"
}

// checkExtras collects the extras as a run does, to nowhere.
func (r *run) checkExtras(ctx context.Context) []Finding {
	const name = "extras"
	x := r.Request.Policy.Spec.Extras
	if x == nil {
		return nil
	}
	files, err := extras.Collect(ctx, io.Discard, x.Paths, r.Log)
	if err != nil {
		return []Finding{failed(name, "", configErrorf("spec.extras.paths: %w", err), "Correct the path (the chart's extras.paths). Snapshots are stored without extras until then.")}
	}
	return []Finding{ok(name, "", "%d files can be collected", len(files))}
}

// readable opens a file or a folder as a run will.
func readable(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return f.Close()
}

// checkCertificates looks at the certificates of spec.etcd by themselves. What the members think of them is checkEtcd's.
func (r *run) checkCertificates(context.Context) (found []Finding) {
	const name = "certificate"
	e := r.Request.Policy.Spec.Etcd
	if !slices.ContainsFunc(e.Endpoints, isTLS) {
		return []Finding{skipped(name, "", "the endpoints speak no TLS")}
	}
	var roots *x509.CertPool // the system's
	if e.CAFile != "" {
		authorities, err := readCertificates("spec.etcd.caFile", e.CAFile)
		if err != nil {
			return []Finding{failed(name, e.CAFile, err, "Name the CA certificate of etcd, in PEM format.")}
		}
		roots = x509.NewCertPool()
		for _, c := range authorities {
			roots.AddCert(c)
		}
		found = append(found, r.expiry(e.CAFile, authorities, "Renew etcd's CA, and what it signed.")...)
	}
	if e.CertFile == "" {
		return append(found, skipped(name, "client", "spec.etcd.certFile is not set"))
	}
	chain, err := readCertificates("spec.etcd.certFile", e.CertFile)
	if err != nil {
		return append(found, failed(name, e.CertFile, err, "Name the client certificate, in PEM format."))
	}
	const renew = "Renew the client certificate (kubeadm: kubeadm certs renew apiserver-etcd-client)."
	lasting := r.expiry(e.CertFile, chain, renew)
	found = append(found, lasting...)
	if _, err := tls.LoadX509KeyPair(e.CertFile, e.KeyFile); err != nil {
		found = append(found, failed(name, e.KeyFile, &etcd.ConfigError{Field: "spec.etcd.keyFile", Err: err}, "Name the key that belongs to spec.etcd.certFile."))
	}
	if lasting[0].Result == Fail {
		return found // it would be said twice
	}
	return append(found, verifyClient(e, chain, roots, r.Now())...)
}

// verifyClient tells whether the client certificate is one for clients, and who signed it.
func verifyClient(e v1.EtcdSpec, chain []*x509.Certificate, roots *x509.CertPool, now time.Time) []Finding {
	intermediates := x509.NewCertPool()
	for _, c := range chain[1:] {
		intermediates.AddCert(c)
	}
	o := x509.VerifyOptions{Roots: roots, Intermediates: intermediates, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}
	if _, err := chain[0].Verify(o); err != nil {
		return []Finding{warned("certificate", e.CertFile, "Where etcd refuses it, use a client certificate of the CA that etcd trusts for clients (--trusted-ca-file).",
			"it is not signed by the CA in spec.etcd.caFile: %v", err)}
	}
	if !forClients(chain[0]) {
		return []Finding{failed("certificate", e.CertFile, configErrorf("spec.etcd.certFile: it is not for clients (extended key usage)"), "Issue a certificate with the extended key usage clientAuth.")}
	}
	return nil
}

// forClients says whether a server takes the certificate for a client's.
func forClients(c *x509.Certificate) bool {
	if len(c.ExtKeyUsage)+len(c.UnknownExtKeyUsage) == 0 {
		return true
	}
	return slices.Contains(c.ExtKeyUsage, x509.ExtKeyUsageClientAuth) || slices.Contains(c.ExtKeyUsage, x509.ExtKeyUsageAny)
}

// expiry gives one finding for each certificate of a file, the first one's first.
func (r *run) expiry(subject string, certificates []*x509.Certificate, renew string) (found []Finding) {
	for _, c := range certificates {
		found = append(found, r.lasts(subject, c, renew))
	}
	return found
}

func (r *run) lasts(subject string, c *x509.Certificate, renew string) Finding {
	const name = "certificate"
	who := c.Subject.CommonName
	if who == "" {
		who = c.Subject.String()
	}
	now, end := r.Now(), c.NotAfter.UTC().Format(time.DateOnly)
	left := c.NotAfter.Sub(now)
	switch {
	case left < 0:
		return failed(name, subject, configErrorf("%s expired on %s", who, c.NotAfter.UTC().Format(time.RFC3339)), renew)
	case now.Before(c.NotBefore):
		return failed(name, subject, fmt.Errorf("%s is valid only from %s on", who, c.NotBefore.UTC().Format(time.RFC3339)), "Set the clock of this node, or of the machine that issued the certificate.")
	case left < expirySoon:
		return warned(name, subject, renew, "%s expires on %s, in %s", who, end, days(left))
	}
	return ok(name, subject, "%s is valid until %s, %s more", who, end, days(left))
}

func days(d time.Duration) string {
	if d < 48*time.Hour {
		return d.Round(time.Minute).String()
	}
	return fmt.Sprintf("%d days", int(d.Hours()/24))
}

// readCertificates gives all certificates of a PEM file.
func readCertificates(field, path string) (all []*x509.Certificate, err error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, &etcd.ConfigError{Field: field, Err: err}
	}
	for block, rest := pem.Decode(bytes.TrimSpace(data)); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, &etcd.ConfigError{Field: field, Err: err}
		}
		all = append(all, c)
	}
	if len(all) == 0 {
		return nil, &etcd.ConfigError{Field: field, Err: errors.New("there is no PEM certificate in it")}
	}
	return all, nil
}

func isTLS(endpoint string) bool {
	return strings.HasPrefix(endpoint, "https://") || strings.HasPrefix(endpoint, "unixs://")
}
