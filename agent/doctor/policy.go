package doctor

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"filippo.io/age"

	"etcdsnapshot.dev/agent/archive"
)

func (r *run) checkPolicy(context.Context) []Finding {
	if r.PolicyErr != nil {
		return []Finding{failed("policy", r.Name, r.PolicyErr, "A run stops here. Correct the policy, or where it is read from.")}
	}
	p := r.Request.Policy
	var names []string
	for _, d := range p.Spec.Destinations {
		names = append(names, d.Name)
	}
	return []Finding{ok("policy", p.Name, "valid, stores in %s (%s)", strings.Join(names, ", "), r.PolicySource)}
}

// checkEncryption parses the recipients and has each identity open a message to them.
func (r *run) checkEncryption(context.Context) []Finding {
	const name = "encryption"
	recipients, extras, err := archive.PolicyRecipients(&r.Request.Policy.Spec)
	if err != nil {
		return []Finding{failed(name, "recipients", err, "Give public keys as age-keygen -y or ssh-keygen prints them.")}
	}
	var found []Finding
	if len(recipients) > 0 {
		found = append(found, ok(name, "recipients", "%d can open the snapshots", len(recipients)))
	} else {
		found = append(found, warned(name, "", "Set spec.encryption.age.recipients (the chart's encryption.age.recipients).",
			"snapshots are not encrypted, and they hold every Secret of the cluster"))
	}
	if len(extras) > 0 {
		found = append(found, ok(name, "extras", "%d can open the extras, and with them act as anyone in the cluster", len(extras)))
	}
	if len(recipients)+len(extras) == 0 {
		return found
	}
	if len(r.Identities) == 0 {
		return append(found, skipped(name, "identity", "no --identity is given, so that it cannot be tried to open a snapshot"))
	}
	for _, file := range r.Identities {
		ids, warning, err := archive.LoadIdentityFile(file)
		if err == nil {
			err = opensAny(ids, recipients, extras)
		}
		switch {
		case err != nil:
			found = append(found, failed(name, file, &configError{err}, "Name the file with the private key that belongs to one of the recipients."))
		case warning != "":
			found = append(found, warned(name, file, "chmod 600 "+file, "%s", warning))
		default:
			found = append(found, ok(name, file, "opens what is encrypted to the recipients"))
		}
	}
	return found
}

// checkSigning reads the key that snapshots are signed with, and those that are trusted.
func (r *run) checkSigning(context.Context) []Finding {
	const name = "signing"
	p := r.Request.Policy
	if p.Spec.Signing == nil {
		return nil
	}
	trusted, err := archive.PolicyTrustedKeys(p)
	if err != nil {
		return []Finding{failed(name, "trusted keys", err, "Give public keys as ssh-keygen writes them to a .pub file.")}
	}
	signer, err := archive.PolicySigner(p)
	var found []Finding
	switch {
	case err != nil:
		found = append(found, failed(name, "key", err, "Make one with ssh-keygen -t ed25519 -N '', and list its .pub file's line among the trusted keys."))
	case signer == nil:
		found = append(found, skipped(name, "key", "snapshots are not signed here: spec.signing.ssh.keyFile is not set"))
	default:
		found = append(found, ok(name, "key", "snapshots are signed by %s", signer.Fingerprint()))
	}
	if trusted == nil {
		return append(found, warned(name, "trusted keys", "Set spec.signing.ssh.trustedKeys (the chart's signing.trustedKeys), or give --verify-key to restore and verify.",
			"snapshots are signed, but restore and verify do not ask for it"))
	}
	return append(found, ok(name, "trusted keys", "restore and verify take what %d of them signed", len(trusted)))
}

// opensAny tries whether the identities open what is encrypted to any of the lists of recipients, of which one has some.
func opensAny(ids []age.Identity, lists ...[]archive.Recipient) (err error) {
	for _, recipients := range lists {
		if len(recipients) == 0 {
			continue
		}
		if err = archive.Opens(recipients, ids); err == nil {
			return nil
		}
	}
	return err
}

// checkEnvironment looks at what a pod gets from outside of its policy.
func (r *run) checkEnvironment(context.Context) []Finding {
	const name = "environment"
	var found []Finding
	if r.Node == "" {
		found = append(found, warned(name, "node", "Set NODE_NAME, or --node.", "this node's name is not known: snapshots will not say where they were taken"))
	} else {
		found = append(found, ok(name, "node", "%s", r.Node))
	}
	if r.Kubernetes == nil {
		return found
	}
	request, err := http.NewRequest(http.MethodGet, r.Kubernetes.String(), nil)
	if err != nil {
		return append(found, failed(name, "proxy", err, "Check the API server's address in the kubeconfig."))
	}
	switch proxy, err := http.ProxyFromEnvironment(request); {
	case err != nil:
		found = append(found, failed(name, "proxy", configErrorf("HTTPS_PROXY: %w", err), "Correct the variable."))
	case proxy != nil:
		found = append(found, warned(name, "proxy", fmt.Sprintf("Add %s to NO_PROXY.", request.URL.Hostname()), "the API server is asked through the proxy %s", proxy.Redacted()))
	}
	return found
}
