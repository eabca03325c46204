// Command caroots writes the CA certificates that the image ships (Mozilla's, as golang.org/x/crypto pins them in
// go.mod) as one PEM file. Roots that are only trusted under conditions a PEM file cannot state are left out.
package main

import (
	"bytes"
	"encoding/pem"
	"fmt"
	"os"

	"golang.org/x/crypto/x509roots/fallback/bundle"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: caroots FILE")
		os.Exit(2)
	}
	var out bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint != nil {
			continue
		}
		if err := pem.Encode(&out, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}); err != nil {
			fmt.Fprintln(os.Stderr, "caroots:", err)
			os.Exit(1)
		}
	}
	if err := os.WriteFile(os.Args[1], out.Bytes(), 0o644); err != nil {
		fmt.Fprintln(os.Stderr, "caroots:", err)
		os.Exit(1)
	}
}
