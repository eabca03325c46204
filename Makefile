# etcd-snapshot. `make` or `make help` lists the targets; Go, make and git are all that is needed to start.

SHELL := /bin/sh
.DEFAULT_GOAL := help

GO       ?= go
GOOS     := $(shell $(GO) env GOOS)
GOARCH   := $(shell $(GO) env GOARCH)
VERSION  ?= $(shell git describe --tags --always --dirty 2>/dev/null | sed 's/^v//' || echo dev)
COMMIT   ?= $(shell git rev-parse --short=12 HEAD 2>/dev/null)
IMAGE    ?= etcd-snapshot-agent:$(VERSION)
# What is published is built with this Go, whatever is installed: its standard library is a part of the binary.
RELEASE_GO := GOTOOLCHAIN=go$(shell cat .go-version)
LDFLAGS  := -s -w -buildid= -X etcdsnapshot.dev/agent/cli.version=$(VERSION) -X etcdsnapshot.dev/agent/cli.commit=$(COMMIT)
BIN      := bin/etcd-snapshot-agent
# The race detector needs a C compiler. Without one the tests run all the same, except in CI.
RACE     := $(shell if command -v "$$($(GO) env CC)" >/dev/null 2>&1 || [ -n "$$CI" ]; then echo -race; fi)
PACKAGES ?= ./...
# What is tested without servers of others.
QUICK    ?= ./agent/api/... ./agent/archive ./agent/etcddb ./agent/object ./agent/retention ./agent/schedule ./agent/store/file ./agent/units ./ci/docs
NODES    ?= 1
TESTFLAGS ?=
BENCH_SIZES ?= 100,1024
BENCH    ?=

##@ Use
.PHONY: demo
demo: build ## The main job without a cluster: a real etcd, the chart's policy, a proven snapshot
	$(GO) run ./ci/demo -agent $(BIN)

.PHONY: test
test: parts ## All tests that need no cluster (with -race); what they need is built first
	@[ -n "$(RACE)" ] || echo "note: no C compiler, so the tests run without the race detector"
	$(GO) test $(RACE) -timeout 30m $(TESTFLAGS) $(PACKAGES)

.PHONY: quick
quick: ## The tests of a first look: a minute or two from nothing, no servers but a tool or two
	$(GO) test $(RACE) $(TESTFLAGS) $(QUICK)

.PHONY: fuzz
fuzz: ## Every fuzz target for FUZZTIME each, 30s by default; FUZZ='Policy|Recipients' picks some
	FUZZTIME='$(FUZZTIME)' FUZZ='$(FUZZ)' PACKAGES='$(PACKAGES)' ci/fuzz.sh

.PHONY: e2e
e2e: ## The tests that need a cluster, on one of namespaces, or on yours (see CONTRIBUTING.md)
	$(GO) test -tags e2e -count=1 -timeout 40m $(TESTFLAGS) ./ci/e2e/...

.PHONY: cluster-up
cluster-up: ## A kubeadm control plane in namespaces of this machine (Linux, root); NODES=3 for three
	$(GO) run ./ci/cluster/cmd up -nodes $(NODES)

.PHONY: cluster-down
cluster-down: ## End it
	$(GO) run ./ci/cluster/cmd down

##@ Build
.PHONY: build
build: ## The static binary for this machine, in bin/
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o $(BIN) ./agent

.PHONY: image
image: image-files ## The container image, with docker, podman or buildah
	ci/image.sh $(IMAGE) $(GOARCH)

.PHONY: image-files
image-files: bin/ca-certificates.crt bin/THIRD_PARTY_LICENSES.txt
	$(RELEASE_GO) CGO_ENABLED=0 GOOS=linux GOARCH=$(GOARCH) $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/etcd-snapshot-agent-linux-$(GOARCH) ./agent

bin/ca-certificates.crt: go.mod
	@mkdir -p bin
	$(GO) run ./ci/caroots $@

bin/THIRD_PARTY_LICENSES.txt: go.mod go.sum .go-version $(wildcard ci/tools/licences/*)
	@mkdir -p bin
	$(RELEASE_GO) $(GO) run -C ci/tools/licences . -write '$(abspath $@)'

.PHONY: release
release: bin/ca-certificates.crt bin/THIRD_PARTY_LICENSES.txt ## Everything a release consists of, in dist/: binaries, image, chart, SBOMs, checksums
	$(RELEASE_GO) $(GO) run ./ci/release -version '$(VERSION)' -ldflags '$(LDFLAGS)' $(RELEASEFLAGS)

.PHONY: release-check
release-check: ## Build the release twice and compare every byte
	ci/release/check.sh

.PHONY: clean
clean: ## Remove what was built here (the cache of test programs outside the checkout stays)
	rm -rf bin dist .demo

##@ Develop
.PHONY: generate
generate: ## Write what is derived: DeepCopy, CRDs, JSON Schemas, the chart's schema and tables, docs/reference
	$(GO) run -C ci/tools ./generate

.PHONY: kubernetes-types
kubernetes-types: ## Write the fields of each supported Kubernetes minor that the chart is tested by (needs the network)
	$(GO) run ./ci/kubetypes 27 37

.PHONY: gitops-types
gitops-types: ## Write the schemas of Argo CD, Flux and Cluster API that docs/examples are tested by (needs the network)
	$(GO) run ./ci/gitopstypes

.PHONY: fmt
fmt: ## Format the Go code
	$(GO) tool -modfile=ci/tools/lint/go.mod golangci-lint fmt

.PHONY: lint
lint: ## Lint the Go code and the workflows
	$(GO) tool -modfile=ci/tools/lint/go.mod golangci-lint run
	$(GO) tool -modfile=ci/tools/actionlint/go.mod actionlint

.PHONY: licences
licences: ## Fail on code in the agent whose licence is not on the list
	$(GO) test -C ci/tools/licences .
	$(GO) run -C ci/tools/licences .

.PHONY: vulnerabilities
vulnerabilities: ## Fail on known vulnerabilities that the code reaches (GOVULNDB names another list of them)
	ci/vulnerabilities.sh

.PHONY: verify
verify: lint licences vulnerabilities ## Fail on drift of generated files, untidy modules, lint, licences and known vulnerabilities
	ci/verify.sh

.PHONY: bench
bench: build ## Measure the agent beside etcdctl, zstd and age; writes docs/performance.md (BENCH_SIZES in MiB, BENCH="-pairs 3 ...")
	$(GO) run ./ci/bench -agent $(BIN) -sizes $(BENCH_SIZES) $(BENCH)

.PHONY: pictures
pictures: ## Make the pictures in docs/pictures anew, of real runs (needs Node.js and chromium)
	$(GO) test ./charts -run 'TestPictures$$' -pictures -count=1 -timeout 15m

.PHONY: parts
parts: ## Build the real servers that the tests run (cached outside the checkout)
	$(GO) run ./ci/parts/cmd $(PARTS)

.PHONY: help
help: ## This text
	@awk 'BEGIN {FS = ":.*## "; print "Usage: make TARGET\n"} \
		/^##@/ {printf "\n%s\n", substr($$0, 5)} \
		/^[a-z0-9-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
