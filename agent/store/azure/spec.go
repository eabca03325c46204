package azure

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blob"
	"golang.org/x/net/http/httpguts"

	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/agent/store"
)

func bad(field string, err error) error { return fmt.Errorf("%w: %s: %w", store.ErrConfig, field, err) }

// serviceURL is the blob service of the account.
func serviceURL(spec *v1.AzureDestination) (*url.URL, error) {
	if spec.ServiceURL == "" {
		if spec.Account == "" {
			return nil, bad("account", errors.New("it is needed, or serviceURL"))
		}
		return &url.URL{Scheme: "https", Host: spec.Account + ".blob.core.windows.net", Path: "/"}, nil
	}
	u, err := url.Parse(spec.ServiceURL)
	switch {
	case err != nil:
		// The message of url.Parse repeats the whole, which may hold what was pasted by mistake.
		return nil, bad("serviceURL", errors.New("it is not a URL"))
	case u.RawQuery != "" || u.ForceQuery || u.Fragment != "" || u.User != nil:
		return nil, bad("serviceURL", errors.New("it must end before any ?: a SAS belongs into the file sas-token under auth.credentialsDir"))
	case u.Scheme != "https" && u.Scheme != "http" || u.Host == "":
		return nil, bad("serviceURL", errors.New("it must be http:// or https:// and a host"))
	}
	return u, nil
}

// accountName is the account that a shared key belongs to: as it is given, or as serviceURL names it, in its host
// (https://ACCOUNT.blob.core.usgovcloudapi.net) or in its path (http://127.0.0.1:10000/ACCOUNT).
func accountName(spec *v1.AzureDestination, service *url.URL) (string, error) {
	if spec.Account != "" {
		return spec.Account, nil
	}
	if path := strings.Trim(service.Path, "/"); path != "" && !strings.Contains(path, "/") {
		return path, nil
	}
	if name, rest, ok := strings.Cut(service.Hostname(), "."); ok && strings.HasPrefix(rest, "blob.") {
		return name, nil
	}
	return "", bad("account", errors.New("it is needed: serviceURL does not tell whose shared key this is"))
}

// identifier is what a name of metadata may be: a C# identifier, of which the service takes the ASCII ones
// (https://learn.microsoft.com/rest/api/storageservices/naming-and-referencing-containers--blobs--and-metadata).
var identifier = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// configure reads what spec says about blobs. The wait for the service's complaint would be the wait for a snapshot.
func (b *Bucket) configure(spec *v1.AzureDestination) error {
	switch tier := blob.AccessTier(spec.AccessTier); tier {
	case "":
	case blob.AccessTierHot, blob.AccessTierCool, blob.AccessTierCold:
		b.tier = &tier
	default:
		return bad("accessTier", fmt.Errorf("%q is none of Hot, Cool and Cold", spec.AccessTier))
	}
	if spec.EncryptionScope != "" {
		b.scope = &blob.CPKScopeInfo{EncryptionScope: &spec.EncryptionScope}
	}
	for _, k := range slices.Sorted(maps.Keys(spec.Metadata)) {
		v := spec.Metadata[k]
		switch {
		case !identifier.MatchString(k):
			return bad("metadata", fmt.Errorf("the name %q is not a C# identifier: letters, digits and _, with no digit in front", k))
		case !httpguts.ValidHeaderFieldValue(v) || strings.TrimSpace(v) != v || strings.ContainsFunc(v, func(r rune) bool { return r > unicode.MaxASCII }):
			return bad("metadata", fmt.Errorf("the value of %q cannot be that of a header", k))
		case v == "":
			// Servers and proxies disagree on a header without a value, and with them the signature.
			continue
		}
		if b.metadata == nil {
			b.metadata = map[string]*string{}
		}
		b.metadata[k] = &v
	}
	return nil
}

// checkKey refuses what the service would refuse or, worse, rewrite
// (https://learn.microsoft.com/rest/api/storageservices/naming-and-referencing-containers--blobs--and-metadata).
func checkKey(key string) error {
	if err := store.CheckKey(key); err != nil {
		return err
	}
	var why string
	switch {
	case len(key) > 1024:
		why = "is longer than 1,024 bytes"
	case strings.Contains(key, `\`):
		why = `holds a \, which Azure takes for a slash`
	case strings.HasSuffix(key, ".") || strings.Contains(key, "./"):
		why = "has a segment that ends with a dot, which Azure removes"
	case strings.ContainsFunc(key, unicode.IsControl):
		why = "holds a control character"
	case !utf8.ValidString(key):
		why = "is not UTF-8"
	default:
		return nil
	}
	return fmt.Errorf("%w: key %q %s", store.ErrConfig, key, why)
}
